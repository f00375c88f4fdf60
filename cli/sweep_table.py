"""A sweep's cells and their main figures as a table for people, made with rich."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from sim.sweep import Cell
from sim.sweep_cell import Figures

MOST_ROWS = 60
_COLUMNS = (
    ("hit", "cache_hit_rate", "{:.2%}"),
    ("L1", "hit_rates.all.tokens.device", "{:.2%}"),
    ("L2", "hit_rates.all.tokens.host", "{:.2%}"),
    ("L3", "hit_rates.all.tokens.storage", "{:.2%}"),
    ("TTFT p50 ms", "ttft_ms.p50", "{:,.0f}"),
    ("p99 ms", "ttft_ms.p99", "{:,.0f}"),
    ("TPOT p50 ms", "tpot_ms.p50", "{:,.1f}"),
    ("requests/s", "throughput.requests_per_s", "{:,.3g}"),
    ("GPU busy", "gpu.busy_fraction", "{:.0%}"),
)


def print_cells(cells: Sequence[Cell]) -> None:
    """Print what would be run, a line each."""
    for cell in cells:
        print(f"{cell.number + 1:>{len(str(len(cells)))}}  {'  '.join(_named(cell)) or '-'}")
    print(f"{len(cells)} scenarios; nothing was run")


def print_sweep(
    cells: Sequence[Cell], figures: Mapping[str, Figures], errors: Mapping[str, str]
) -> None:
    """Print a row for each cell that was run."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from report.console import table_console

    console = table_console(220)
    shown = [cell for cell in cells if cell.digest in figures or cell.digest in errors]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    files = any(cell.file for cell in cells) and len({cell.file for cell in cells}) > 1
    for name in [*(["scenario"] if files else []), *cells[0].options]:
        table.add_column(escape(name.rpartition(".")[2]))
    for name, *_ in _COLUMNS:
        table.add_column(name, justify="right")
    for cell in shown[:MOST_ROWS]:
        row = [os.path.basename(cell.file)] if files else []
        row += [_short(key, value) for key, value in cell.options.items()]
        if cell.digest in errors:
            table.add_row(*map(escape, row), "failed")
            continue
        found = figures[cell.digest]
        table.add_row(*map(escape, row), *(_shown(found.get(key), how) for _, key, how in _COLUMNS))
    console.print(table)
    if len(shown) > MOST_ROWS:
        print(f"and {len(shown) - MOST_ROWS} more rows in the file")


def _named(cell: Cell) -> list[str]:
    file = [cell.file] if cell.file else []
    return file + [f"{key}={_short(key, value)}" for key, value in cell.options.items()]


def _short(key: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return os.path.basename(str(value)) if key in ("trace.path", "machine.profile") else str(value)


def _shown(value: Any, how: str) -> str:
    return "-" if value is None else how.format(value)
