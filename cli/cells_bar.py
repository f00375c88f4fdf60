"""A progress bar over scenarios: on a terminal; everywhere else it is silent."""

from __future__ import annotations

from typing import Self

from traces.progress import TerminalBar


class CellsBar(TerminalBar):
    """Counts scenarios to `total`, of which `done` are behind it. A context manager."""

    def __init__(self, description: str, total: int, done: int = 0) -> None:
        super().__init__()
        self._description, self._total, self._done = description, total, done

    def advance(self) -> None:
        """One more is done."""
        if self._bar is not None:
            self._bar.advance(self._task)

    def __enter__(self) -> Self:
        if self._wanted:
            from rich.progress import MofNCompleteColumn, TimeElapsedColumn, TimeRemainingColumn

            columns = (MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
            self._show(self._description, columns, total=self._total, completed=self._done)
        return self
