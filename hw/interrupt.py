"""Ctrl-C that ends a live run between two events, so that no count is half made.

It enters like everything from outside, through the machine's inbox, and so also ends a wait. While
a request is read, and at the second Ctrl-C, it takes effect at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from hw.machine import Machine, Stop
from traces.ctrl_c import CtrlC

T = TypeVar("T")


class Interrupt(CtrlC):
    """A context manager around a run on `machine`."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._machine = machine

    def reading(self, requests: Iterable[T]) -> Iterator[T]:
        """The requests, one at a time; Ctrl-C does not wait for one to come."""
        source = iter(requests)
        while True:
            self.reading_now = True
            try:
                request = next(source)
            except StopIteration:
                return
            finally:
                self.reading_now = False
            yield request

    def end_soon(self) -> None:
        """Through the inbox, which is looked at between two events."""
        self._machine.tell(Stop())
