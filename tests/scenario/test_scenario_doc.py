"""docs/scenario.md says what the records say, and its examples load."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, get_args, get_origin

import pytest

from scenario.geometry import model_names
from scenario.load import load_scenario
from scenario.presets import PRESET_NAMES
from scenario.records import TABLES, Scenario, dump_toml, value_types
from scenario.sizes import parse_size

DOC = (Path(__file__).parents[2] / "docs" / "scenario.md").read_text(encoding="utf-8")
ROWS = {
    key: (default, meaning)
    for key, default, meaning in re.findall(
        r"^\| `([a-z0-9_.]+)` \| `(.*?)` \| (.*) \|$", DOC, re.M
    )
}
EXAMPLES = re.findall(r"^```toml\n(.*?)^```$", DOC, re.M | re.S)


def test_every_key_is_explained_with_its_default() -> None:
    defaults: dict[str, str] = {}
    table = ""
    for line in dump_toml(Scenario()).splitlines():
        if line.startswith("["):
            table = line[1:-1] + "."
        elif line:
            name, _, value = line.partition(" = ")
            defaults[table + name] = value
    assert {key: default for key, (default, _) in ROWS.items()} == defaults
    assert list(ROWS) == list(defaults), "in the order of the file"


@pytest.mark.parametrize("key", [k for k, t in value_types().items() if get_origin(t) is Literal])
def test_every_allowed_name_is_explained(key: str) -> None:
    default, meaning = ROWS[key]
    for name in get_args(value_types()[key]):
        assert f'`"{name}"`' in f"`{default}` {meaning}"


def test_every_table_model_and_preset_is_named() -> None:
    for table in TABLES:
        assert f"## `[{table}]`\n" in DOC
    for name in model_names():
        assert name in ROWS["model.name"][1]
    for preset in PRESET_NAMES:
        assert f"**`{preset}`**" in DOC


def test_the_examples_load(tmp_path: Path) -> None:
    assert len(EXAMPLES) == 3
    for example in EXAMPLES:
        (tmp_path / "example.toml").write_text(example, encoding="utf-8")
        load_scenario(tmp_path / "example.toml")


def test_the_preset_s_options_are_those_of_the_doc(tmp_path: Path) -> None:
    (tmp_path / "options.toml").write_text(EXAMPLES[1], encoding="utf-8")
    preset = load_scenario(None, {"preset": "block-lru"})
    from_doc = load_scenario(tmp_path / "options.toml")
    assert (from_doc.cache, from_doc.restore) == (preset.cache, preset.restore)


def test_the_sizes_of_the_doc_are_sizes() -> None:
    table = DOC.split("A size is written as")[1].split("and rounded down")[0]
    written = [
        text
        for row in re.findall(r"^\| (`.*?) \|", table, re.M)
        for text in re.findall(r"`(.*?)`", row)
    ]
    assert len(written) == 12
    for text in written:
        parse_size(text, "k")
