"""What `hicache report` does once its arguments are read."""

from __future__ import annotations

import os
from collections.abc import Sequence

from cli.targets import check_target
from hicache.errors import InputError
from report.page import page
from report.page_inputs import read_inputs
from traces.outfile import write_lines


def run_report(
    results: Sequence[str], *, out: str | None, title: str, rows: int, replaces: bool
) -> int:
    """Read, write the page, say where it is. Returns 0; raises InputError for what cannot be."""
    if rows < 1:
        raise InputError(f"--rows is {rows}: the table must have at least one")
    path = out or default_path(results)
    check_target(path, "report", replaces=replaces)
    names = [os.path.basename(os.path.abspath(each)) for each in results]
    text = page(read_inputs(results), title or ", ".join(names), rows)
    write_lines([text.encode()], path)
    print(f"report: {path}")
    return 0


def default_path(results: Sequence[str]) -> str:
    """Beside the first result: its name, or with several report.html."""
    first = os.path.relpath(os.path.abspath(results[0]))
    if len(results) > 1:
        return os.path.join(os.path.dirname(first), "report.html")
    return f"{first.removesuffix('.json')}.html"
