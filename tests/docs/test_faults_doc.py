"""docs/faults.md: every report has a row, and every row its tests, one of which puts it back."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
REPORTS = REPOSITORY.parent / "shared" / "PUBLIC_FAULTS.md"
FOLDER = REPOSITORY / "tests" / "faults"


class Row(NamedTuple):
    sources: tuple[str, ...]
    file: Path
    tests: str  # the beginning of their names
    put_back: str


def rows() -> list[Row]:
    text = (REPOSITORY / "docs" / "faults.md").read_text(encoding="utf-8")
    found = re.findall(r"^\| ([^|]+) \| [^|]+ \| (\w+) \| `(\w+)` \| `(\w+)` \|$", text, re.M)
    assert text.count("\n| ") == len(found) + 1, "a row that cannot be read"
    return [
        Row(tuple(sources.split(", ")), FOLDER / f"test_public_faults_{file}.py", tests, put_back)
        for sources, file, tests, put_back in found
    ]


def functions(file: Path) -> dict[str, ast.FunctionDef]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {each.name: each for each in tree.body if isinstance(each, ast.FunctionDef)}


def test_every_row_has_its_tests() -> None:
    for row in rows():
        names = functions(row.file)
        assert any(name.startswith(f"test_{row.tests}") for name in names), row
        assert f"test_{row.put_back}" in names, row
        text = row.file.read_text(encoding="utf-8").casefold()
        for source in row.sources:
            # "#9927" alone where it stands behind another number of the same project.
            assert source.casefold() in text or f", {source[source.find('#') :]}" in text, source


def test_every_test_of_a_report_is_in_a_row() -> None:
    known = [source for row in rows() for source in row.sources]
    slugs = tuple(f"test_{re.sub(r'[^a-z0-9]+', '_', each.casefold())}" for each in known)
    for file in FOLDER.glob("test_public_faults_*.py"):
        for name in functions(file):
            if name.startswith("test_"):
                assert name.startswith(slugs), f"{file.name}: {name} has no row in docs/faults.md"


def test_every_report_has_a_row() -> None:
    if not REPORTS.exists():
        pytest.skip(f"{REPORTS.name} of the shared data is not here")
    table = REPORTS.read_text(encoding="utf-8").split("|---|---|---|\n")[1]
    reported: list[tuple[str, ...]] = []
    for line in table.splitlines():
        project, sources = "", []
        for source in line.split("|")[1].strip().split(", "):
            project = source.split("#")[0] or project
            sources.append(f"{project}{source}" if source.startswith("#") else source)
        reported.append(tuple(sources))
    ours = [tuple(each.casefold() for each in row.sources) for row in rows()]
    assert [tuple(each.casefold() for each in sources) for sources in reported] == ours
