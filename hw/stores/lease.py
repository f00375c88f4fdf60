"""Leave to touch pages of L2 that an operation was lent, until it is taken back.

    operation   |-- touch --|        |-- touch --|      | end       |-- touch: refused
                                                        waits for whoever is inside

A system call that hangs cannot be ended, and the pages that it was to fill are soon somebody
else's. So a store moves bytes between a file and memory of its own, and between that and L2 only
under a lease: what comes back after the lease has ended changes nothing. Refuses to know pages.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Lease:
    """One operation's. Thread-safe."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._inside = 0
        self._ended = False

    @property
    def ended(self) -> bool:
        """Whether it was taken back."""
        return self._ended

    def touch(self, act: Callable[[], object]) -> bool:
        """Call `act`, which moves memory and does not wait; False if the lease has ended."""
        with self._condition:
            if self._ended:
                return False
            self._inside += 1
        try:
            act()
        finally:
            with self._condition:
                self._inside -= 1
                self._condition.notify_all()
        return True

    def end(self) -> None:
        """Take it back: returns when nobody touches anything, and nobody will."""
        with self._condition:
            self._ended = True
            while self._inside:
                self._condition.wait()
