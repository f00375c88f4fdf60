"""Ctrl-C that ends a live run between two events, so that no count is half made.

It enters like everything from outside, through the machine's inbox, and so also ends a wait. While
a request is read (perhaps from a pipe that has stalled), and at the second Ctrl-C, it takes effect
at once. Where SIGINT belongs to somebody else (a notebook, a thread), nothing changes.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TypeVar

from hw.machine import Machine, Stop

T = TypeVar("T")


class Interrupt:
    """A context manager around a run on `machine`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._asked = False
        self._reading = False
        self._ours = False

    def reading(self, requests: Iterable[T]) -> Iterator[T]:
        """The requests, one at a time; Ctrl-C does not wait for one to come."""
        source = iter(requests)
        while True:
            self._reading = True
            try:
                request = next(source)
            except StopIteration:
                return
            finally:
                self._reading = False
            yield request

    def __enter__(self) -> Interrupt:
        self._ours = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )
        if self._ours:
            signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _on_signal(self, number: int, frame: object) -> None:
        if self._reading or self._asked:
            raise KeyboardInterrupt
        self._asked = True
        self._machine.tell(Stop())
