"""What `hicache report` does once its arguments are read."""

from __future__ import annotations

import os
from collections.abc import Sequence

from hicache.errors import InputError
from report.page import MADE_BY, page
from report.page_inputs import read_inputs

_HEAD_BYTES = 4096


def run_report(
    results: Sequence[str], *, out: str | None, title: str, rows: int, replaces: bool
) -> int:
    """Read, write the page, say where it is. Returns 0; raises InputError for what cannot be."""
    if rows < 1:
        raise InputError(f"--rows is {rows}: the table must have at least one")
    path = out or default_path(results)
    check_target(path, replaces=replaces)
    names = [os.path.basename(os.path.abspath(each)) for each in results]
    text = page(read_inputs(results), title or ", ".join(names), rows)
    unfinished = f"{path}.{os.getpid()}.part"
    try:
        with open(unfinished, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(unfinished, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        if os.path.exists(unfinished):
            os.remove(unfinished)
    print(f"report: {path}")
    return 0


def default_path(results: Sequence[str]) -> str:
    """Beside the first result: its name, or with several report.html."""
    first = os.path.relpath(os.path.abspath(results[0]))
    if len(results) > 1:
        return os.path.join(os.path.dirname(first), "report.html")
    return f"{first.removesuffix('.json')}.html"


def check_target(path: str, *, replaces: bool) -> None:
    """`InputError` if the page must not be written there: before anything is read."""
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise InputError(f"{path}: cannot be written: there is no folder {folder}")
    if not os.path.lexists(path):
        return
    if not os.path.isfile(path):
        raise InputError(f"{path}: is no file that could be replaced")
    with open(path, "rb") as file:
        head = file.read(_HEAD_BYTES)
    if head and MADE_BY.encode() not in head and not replaces:
        raise InputError(
            f"{path}: is there already and was not made by hicache report; --force replaces it"
        )
