"""What is being measured and what remains: a bar on a terminal, a line for each probe elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

from calibrate.points import Point


class SessionProgress:
    """See `calibrate.session.Progress`. A context manager, so that the bar goes away."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None
        self._total = 0
        self._finished = 0

    def __enter__(self) -> SessionProgress:
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

    def begin(self, points: int) -> None:
        """So many points in all."""
        self._total = points
        if sys.stderr is not None and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[left]}"),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task("calibrating", total=points, left="")
            self._bar.start()

    def probe(self, name: str, points: int) -> None:
        """The next probe."""
        if self._bar is not None:
            self._bar.update(self._task, description=name)
        else:
            self._say(f"{name}: {points} points ({self._finished} of {self._total} done)")

    def point(self, point: Point, left_s: float) -> None:
        """The next point, with so much time left."""
        if self._bar is not None:
            self._bar.update(
                self._task, description=point.key, left=f"{max(0.0, left_s):.0f} s at most"
            )

    def done(self, points: int) -> None:
        """So many more are done."""
        self._finished += points
        if self._bar is not None:
            self._bar.advance(self._task, points)

    def missing(self, what: str, reason: str) -> None:
        """Something cannot be measured."""
        self._say(f"not measured: {what}: {reason}")

    def _say(self, line: str) -> None:
        if self._bar is not None:
            self._bar.console.print(line)
        else:
            print(line, file=sys.stderr, flush=True)
