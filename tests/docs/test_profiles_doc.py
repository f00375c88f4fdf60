"""docs/profiles.md: its example gives what it says, and it names every field of a profile."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import typing
from pathlib import Path

import msgspec
import pytest

from scenario.profile import Profile, Provenance, Sourced, load_profile
from scenario.results import load_result

REPOSITORY = Path(__file__).resolve().parents[2]
TEXT = (REPOSITORY / "docs" / "profiles.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.M | re.S)


def _fields(kind: type[msgspec.Struct], prefix: str = "") -> list[str]:
    """Every value's key, in order; of values with a provenance only their own."""
    names: list[str] = []
    hints = typing.get_type_hints(kind)
    for name in kind.__struct_fields__:
        structs = [
            each
            for each in (hints[name], *typing.get_args(hints[name]))
            if isinstance(each, type) and issubclass(each, msgspec.Struct)
        ]
        whole = not structs or (issubclass(structs[0], Sourced) and name != "model")
        names += [prefix + name] if whole else _fields(structs[0], f"{prefix}{name}.")
    return names


def test_every_field_is_explained() -> None:
    table = TEXT.split("## Every field")[1]
    firsts = [line.split(" | ")[0] for line in table.splitlines() if line.startswith("| `")]
    assert [key for first in firsts for key in re.findall(r"`(.*?)`", first)] == _fields(Profile)
    for provenance in typing.get_args(Provenance):
        assert f"`{provenance}`" in TEXT


def test_the_example_value_is_one_of_the_profile() -> None:
    (block,) = _blocks("json")
    assert json.loads(block) == msgspec.to_builtins(load_profile("nvidia-h200").memory.host_bytes)


def test_the_example_gives_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("scenario", "data"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    monkeypatch.chdir(tmp_path)
    (code,), (commands,) = _blocks("python"), _blocks("sh")
    subprocess.run([sys.executable, "-c", code], check=True)
    for command in commands.splitlines():
        words = shlex.split(command)
        assert words[0] == "hicache"
        subprocess.run([Path(sys.executable).parent / "hicache", *words[1:], "-q"], check=True)
    assert load_profile("./fast-disk.json").name == "h200-fast-disk"
    for name, row in (("slow", "as measured"), ("fast", "four times as fast")):
        summary = load_result(f"results/{name}").summary
        storage = summary["cached_tokens_total"]["storage"] / summary["prompt_tokens"]
        assert (
            f"| {row} | {100 * storage:.2f} % | {100 * summary['cache_hit_rate']:.2f} % "
            f"| {summary['ttft_ms']['p50']:.0f} ms |"
        ) in TEXT
