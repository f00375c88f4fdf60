"""A progress bar for reading a trace: on a terminal, and only once reading has taken a moment.

Everywhere else (a pipe, a file, CI) it is silent, and `rich` is not even imported.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

# A shorter wait needs no bar, nor the import of what draws it.
PATIENCE_S = 0.5


class TerminalBar:
    """What bars have in common: a context manager that wipes its bar away in the end."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None
        self._wanted = sys.stderr is not None and sys.stderr.isatty()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _show(self, description: str, columns: Sequence[Any], **task: Any) -> Any:
        """Draw the bar from now on: `description`, the bar, then rich's `columns`. Returns it."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), *columns,
            console=Console(stderr=True), transient=True,
        )  # fmt: skip
        self._task = self._bar.add_task(description, **task)
        self._bar.start()
        return self._bar


class ProgressBar(TerminalBar):
    """For `open_trace`'s `progress`. A context manager, so that it is wiped away in the end.

        with ProgressBar("reading agents.jsonl") as progress:
            trace = open_trace("agents.jsonl", progress=progress)
            for request in trace.requests(64): ...

    It goes to standard error, and only if that is a terminal.
    """

    def __init__(self, description: str) -> None:
        super().__init__()
        self._description = description
        self._started_s = time.monotonic()

    def __call__(self, bytes_done: int, bytes_total: int | None) -> None:
        """Show how far reading has come; `bytes_total` None is an unknown end."""
        if not self._wanted:
            return
        bar = self._bar
        if bar is None:
            if time.monotonic() - self._started_s < PATIENCE_S:
                return
            from rich.progress import DownloadColumn, TimeRemainingColumn

            columns = (DownloadColumn(), TimeRemainingColumn())
            bar = self._show(self._description, columns, total=None)
        bar.update(self._task, completed=bytes_done, total=bytes_total)
