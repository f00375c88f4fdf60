"""A progress bar for reading a trace: on a terminal, and only once reading has taken a moment.

Everywhere else (a pipe, a file, CI) it is silent, and `rich` is not even imported.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

# A shorter wait needs no bar, nor the import of what draws it.
PATIENCE_S = 0.5


class ProgressBar:
    """For `open_trace`'s `progress`. A context manager, so that it is wiped away in the end.

        with ProgressBar("reading agents.jsonl") as progress:
            trace = open_trace("agents.jsonl", progress=progress)
            for request in trace.requests(64): ...

    It goes to standard error, and only if that is a terminal.
    """

    def __init__(self, description: str) -> None:
        self._description = description
        self._bar: Any = None
        self._task: Any = None
        self._started_s = time.monotonic()
        self._wanted = sys.stderr is not None and sys.stderr.isatty()

    def __enter__(self) -> ProgressBar:
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

    def __call__(self, bytes_done: int, bytes_total: int | None) -> None:
        """Show how far reading has come; `bytes_total` None is an unknown end."""
        if not self._wanted:
            return
        if self._bar is None:
            if time.monotonic() - self._started_s < PATIENCE_S:
                return
            self._bar = self._start()
        self._bar.update(self._task, completed=bytes_done, total=bytes_total)

    def _start(self) -> Any:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = bar.add_task(self._description, total=None)
        bar.start()
        return bar
