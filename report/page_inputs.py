"""What a report is made of: result folders, comparisons, curves, what was learned. Read and told
apart by what is in them. Refuses to run anything.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hicache.errors import InputError
from scenario.results import TIMELINE, Result, load_result

# Of pandas, which has no types that a checker could use.
DataFrame = Any

COMPARE, COMPARE_STUDY, COMPARE_RUNS = "compare.json", "compare.toml", "runs"
COMPARE_SCHEMA, CURVE_SCHEMA = "hicache compare 1", "hicache curve 1"
LEARNING, DECISIONS = "learning.json", "learning.csv"


@dataclass(slots=True)
class Run:
    """A result under the name it has in the report."""

    name: str
    result: Result
    rows: DataFrame
    timeline: str | None

    @property
    def summary(self) -> dict[str, Any]:
        """summary.json."""
        return self.result.summary

    @property
    def timed(self) -> bool:
        """Whether anything took time in it."""
        return self.summary["mode"] == "timed"


@dataclass(slots=True)
class Learned:
    """A folder of `hicache learning`: its summary, and a row a decision."""

    summary: dict[str, Any]
    decisions: DataFrame


@dataclass(slots=True)
class Inputs:
    """All that the page shows. `studies`: each comparison's document and its TOML."""

    runs: list[Run] = field(default_factory=list)
    studies: list[tuple[dict[str, Any], str]] = field(default_factory=list)
    curves: list[dict[str, Any]] = field(default_factory=list)
    learned: list[Learned] = field(default_factory=list)


def read_inputs(paths: Sequence[str]) -> Inputs:
    """Read every path. Raises InputError naming the one that is none of the four."""
    found = Inputs()
    for path in paths:
        if os.path.isfile(path):
            found.curves.append(_curve(path))
        elif os.path.exists(os.path.join(path, COMPARE)):
            _read_comparison(found, path)
        elif os.path.exists(os.path.join(path, LEARNING)):
            found.learned.append(_learned(path))
        else:
            found.runs.append(_run(path, os.path.basename(os.path.abspath(path))))
    names = [each.name for each in found.runs]
    for place, run in enumerate(found.runs):
        if names.count(run.name) > 1:
            run.name = f"{run.name} ({names[: place + 1].count(run.name)})"
    return found


def _read_comparison(found: Inputs, path: str) -> None:
    document = _json(os.path.join(path, COMPARE))
    if document.get("schema") != COMPARE_SCHEMA:
        raise InputError(
            f"{path}: {COMPARE} has schema {document.get('schema')!r}; known is {COMPARE_SCHEMA!r}"
        )
    found.studies.append((document, _text(os.path.join(path, COMPARE_STUDY))))
    traces = [each["name"] for each in document["traces"]]
    for trace in traces:
        for variant in document["variants"]:
            name = variant["name"] if len(traces) == 1 else f"{variant['name']}, {trace}"
            folder = os.path.join(path, COMPARE_RUNS, trace, variant["name"])
            found.runs.append(_run(folder, name))


def _run(folder: str, name: str) -> Run:
    result = load_result(folder)
    try:
        rows = result.requests()
    except Exception as error:  # pyarrow has many
        raise InputError(f"{folder}: requests.parquet cannot be read: {error}") from None
    for column in ("session", "reason"):
        rows[column] = rows[column].astype(object)
    path = os.path.join(result.folder, TIMELINE)
    return Run(name, result, rows, _text(path) if os.path.exists(path) else None)


def _curve(path: str) -> dict[str, Any]:
    document = _json(path)
    if document.get("schema") != CURVE_SCHEMA:
        raise InputError(
            f"{path} is a file and no curve of hicache curve; results and comparisons are folders"
        )
    return document


def _learned(path: str) -> Learned:
    import pandas

    summary = _json(os.path.join(path, LEARNING))
    try:
        return Learned(summary, pandas.read_csv(os.path.join(path, DECISIONS)))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {DECISIONS}: {error}") from None


def _json(path: str) -> dict[str, Any]:
    try:
        found = json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise InputError(f"{path}: not a table of keys and values")
    return found


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as opened:
            return opened.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: {reason}") from None
