"""What goes on beside a sample: another thread that repeats it, as a run's workers would."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def going_on(act: Callable[[], object]) -> Iterator[None]:
    """`act()` again and again in another thread, begun before and ended after what is inside."""
    stopping, begun = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def keep_on() -> None:
        try:
            while not stopping.is_set():
                begun.set()
                act()
        except BaseException as error:
            errors.append(error)
            begun.set()

    thread = threading.Thread(target=keep_on)
    thread.start()
    begun.wait()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
    if errors:
        raise errors[0]
