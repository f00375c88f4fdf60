"""docs/result.md names every column, every reason and every key of a result, and no other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scenario.load import load_scenario
from sim.replay import replay

REPOSITORY = Path(__file__).resolve().parents[2]
TEXT = (REPOSITORY / "docs" / "result.md").read_text(encoding="utf-8")
COLUMNS, REASONS, KEYS = (
    TEXT.split(head)[1].split(end)[0]
    for head, end in (
        ("| column | meaning |", "| `reason` | restored"),
        ("| `reason` | restored | why |", "## summary.json"),
        ("| key | meaning |", "\0"),
    )
)
DIRECTIONS = ("d2h", "h2d", "h2s", "s2h")
# What a word in capitals stands for.
PLACEHOLDERS = {
    "TIER": ("device", "host", "storage"),
    "DIRECTION": DIRECTIONS,
    "HALF": ("all", "last_half"),
    "UNIT": ("tokens", "pages"),
    "STAT": ("p50", "p90", "p99", "mean"),
    "LINE": ("prefill", *DIRECTIONS),
}


def _names(table: str) -> list[str]:
    return re.findall(r"^\| `([^`]+)` \|", table, re.M)


def _expanded(key: str) -> list[str]:
    for placeholder, names in PLACEHOLDERS.items():
        if placeholder in key:
            return [each for name in names for each in _expanded(key.replace(placeholder, name))]
    return [key]


def _leaves(table: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lines = (REPOSITORY / "data" / "agents.jsonl").read_text().splitlines(keepends=True)
    path = tmp_path_factory.mktemp("trace") / "first50.jsonl"
    path.write_text("".join(lines[:50]))
    return path


@pytest.mark.parametrize("mode", ["timed", "untimed"])
def test_every_column_and_key_is_explained(trace: Path, mode: str) -> None:
    outcome = replay(load_scenario(None, {"trace.path": str(trace), "mode": mode}))
    assert _names(COLUMNS) == list(outcome.columns)
    rows = dict(re.findall(r"^\| `([^`]+)` \| (.*) \|$", KEYS, re.M))
    expected = [
        each
        for key, meaning in rows.items()
        if mode == "timed" or not meaning.endswith("*timed*")
        for each in _expanded(key)
    ]
    if mode == "timed":
        expected.remove("belief")  # a table there
    assert sorted(_leaves(dict(outcome.summary))) == sorted(expected)


def test_every_reason_is_explained() -> None:
    engine = "".join(each.read_text() for each in sorted((REPOSITORY / "hicache").glob("*.py")))
    given = re.findall(r'Choice\(.*, "(\w+)"\)', engine)
    given += re.findall(r'run\.reason = "(\w+)"', engine)
    assert sorted(_names(REASONS)) == sorted(set(given))
