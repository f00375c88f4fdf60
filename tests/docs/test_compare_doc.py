"""docs/compare.md and docs/write-a-policy.md: what they show is what comes out, and every key of
compare.json is named.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from cli.compare_table import contrast_lines
from hicache.errors import InputError
from hicache.node import Node
from hicache.tree import Match
from report.plots import belief, capacity, devices, plan, requests
from sim.compare import Comparison, compare
from sim.compare_variants import Study, study_of_file, variants_of_key
from sim.own_policy import load_class

REPOSITORY = Path(__file__).resolve().parents[2]
COMPARE, WRITE, REPORT = (
    (REPOSITORY / "docs" / name).read_text(encoding="utf-8")
    for name in ("compare.md", "write-a-policy.md", "report.md")
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with the page's classes in my_policies.py."""
    place = tmp_path_factory.mktemp("mine")
    (place / "my_policies.py").write_text(
        "\n\n".join(re.findall(r"```python\n(.*?)```", WRITE, re.S))
    )
    return place


@pytest.fixture(scope="module")
def found(folder: Path) -> Comparison:
    own = f"{folder}/my_policies.py:ShortReads"
    variants = tuple(variants_of_key("restore.policy", ["cost", "always", own]))
    demo = str(REPOSITORY / "data" / "demo.toml")
    return compare(Study((str(REPOSITORY / "data" / "agents.jsonl"),), variants, demo))


def test_what_is_shown_is_what_is_printed(found: Comparison) -> None:
    for text, contrast in zip((COMPARE, WRITE), found.contrasts, strict=True):
        shown = re.findall(r"```text\n(.*?)```", text, re.S)[0]
        assert shown == "\n".join(contrast_lines(found, contrast)) + "\n"


def test_every_key_of_the_file_is_named_and_no_other(found: Comparison) -> None:
    document = found.document()
    keys, of_each = COMPARE.split("\ncompare.json:\n")[1].split("and of each comparison:")
    for text, wanted in ((keys, document), (of_each, document["comparisons"][0])):
        first_cells = re.findall(r"^\| (`[^|]+) \|", text, re.M)
        named = [name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)]
        assert sorted(named) == sorted(wanted)


def test_twenty_lines_are_enough_and_the_error_shown_is_the_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = re.findall(r"```python\n(.*?)```", WRITE, re.S)[0]
    assert len([line for line in policy.splitlines() if line.strip()]) <= 20
    monkeypatch.chdir(folder)
    monkeypatch.delitem(sys.modules, "my_policies", raising=False)
    made = load_class("my_policies:ShortReads", "restore.policy")(64, None)
    node = Node(0, 10, None, 0, 0)
    assert made(Match(node, 10, 2, 2, 10)) == (10, "short_read")
    assert made(Match(node, 10, 2, 5, 2 + 8192 // 64 + 1)) == (5, "host")
    assert made(Match(node, 10, 2, 2, 2 + 8192 // 64 + 1)) == (2, "long_read")
    shown = re.search(r"hicache: error: variant ShortReads: (.*)", WRITE)
    assert shown is not None
    from sim.own_policy import _checked_choice

    hits = Match(node, 10, 80, 104, 104)
    beyond = _checked_choice(lambda hits: type(made(hits))(105, "x"), "my_policies:ShortReads")
    with pytest.raises(InputError) as refused:
        beyond(hits)
    assert str(refused.value) == shown[1]
    strategy = load_class("my_policies:BigLast", "cache.eviction")()
    assert strategy(node) == (10, 0)


def test_the_file_shown_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(re.findall(r"```toml\n(.*?)```", COMPARE, re.S)[0])
    study = study_of_file(str(tmp_path / "c.toml"))
    assert [each.name for each in study.variants] == ["now", "more-memory", "mine"]
    assert study.variants[2].own == {"restore.policy": "my_policies:ShortReads"}


def test_every_picture_is_in_the_table_of_them() -> None:
    named = set(re.findall(r"`(\w+\.\w+)\(", REPORT.split("| function | picture |")[1]))
    there = {
        f"{module.__name__.rpartition('.')[2]}.{name}"
        for module in (belief, capacity, devices, plan, requests)
        for name, each in vars(module).items()
        if callable(each) and getattr(each, "__module__", "") == module.__name__
        if each.__annotations__.get("return") == "Figure"
    }
    # Drawn through draw_curve.
    assert named - {"devices.operations_of", "devices.states_of", "plan.plan_table"} == there - {
        "capacity.hit_rate_over_capacity"
    }
