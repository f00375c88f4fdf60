"""The table of arguments against the package's own declarations, read and not executed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from published import FOLDER, version

from scenario.sglang_flags import _SAME, known_flags

PACKAGE = FOLDER / version() / "sglang" / "srt"


def declared() -> Iterator[tuple[str, list[str]]]:
    """Each argument with its other spellings. Fields that are no arguments are left out."""
    for file in sorted((PACKAGE / "arg_groups" / "fields").glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
                continue
            if not ast.unparse(node.annotation).startswith("A["):
                continue
            given = {
                each.arg: each.value
                for each in ast.walk(node.annotation)
                if isinstance(each, ast.keyword)
            }
            if "no_cli" in given and ast.unparse(given["no_cli"]) == "True":
                continue
            name = "--" + node.target.id.replace("_", "-")
            name = ast.literal_eval(given["cli_name"]) if "cli_name" in given else name
            yield name, ast.literal_eval(given["aliases"]) if "aliases" in given else []


def registered() -> Iterator[str]:
    """Those that the server registers by hand: deprecated ones, too."""
    text = Path(PACKAGE / "server_args.py").read_text()
    yield from re.findall(r'add_argument\(\s*"(--[a-z0-9-]+)"', text)


@pytest.fixture(scope="module")
def ours() -> set[str]:
    here = {name for name, flag in known_flags().items() if version() in flag.versions}
    if not here:
        pytest.skip(f"the table has no column for {version()}")
    return here


def test_every_argument_of_the_server_is_known(ours: set[str]) -> None:
    names = {name for first, others in declared() for name in (first, *others)}
    assert len(names) > 400
    assert {*names, *registered()} <= ours


def test_nothing_else_is_known(ours: set[str]) -> None:
    """But for `--no-...` of switches, the short forms, and what the server computes."""
    names = {name for first, others in declared() for name in (first, *others)}
    names |= {*registered(), "--tp", "--dp", "--pp"}
    negated = {f"--no-{name[2:]}" for name in names}
    computed = {"--reasoning-parser", "--tool-call-parser", "--kv-canary-real-data"}
    assert ours - names - negated <= computed


def test_other_spellings_of_what_is_read_are_known() -> None:
    same = dict(declared())
    read = set(_SAME.values())
    for name in read & set(same):
        assert set(same[name]) <= {k for k, v in _SAME.items() if v == name}
