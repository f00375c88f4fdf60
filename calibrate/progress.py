"""What is being measured and what remains: a bar on a terminal, a line for each probe elsewhere."""

from __future__ import annotations

import sys

from calibrate.points import Point
from traces.progress import TerminalBar


class SessionProgress(TerminalBar):
    """See `calibrate.session.Progress`. A context manager, so that the bar goes away."""

    def __init__(self) -> None:
        super().__init__()
        self._total = 0
        self._finished = 0

    def begin(self, points: int) -> None:
        """So many points in all."""
        self._total = points
        if self._wanted:
            from rich.progress import MofNCompleteColumn, TextColumn

            columns = (MofNCompleteColumn(), TextColumn("{task.fields[left]}"))
            self._show("calibrating", columns, total=points, left="")

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
