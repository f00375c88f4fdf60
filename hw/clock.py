"""When things ended on a GPU's stream, in the host's time; and bursts, which are made of such ends.

CUDA events tell how much time lies between two points of a stream, to half a microsecond, but not
when they were on the host's clock; the host sees an event a little after it happened. So the offset
between the two clocks is the smallest that any event of the same batch of work showed: the host is
late by chance, never early. On a CPU a mark is the time at which it was made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from hw.device import Control, Timing

Mark = torch.cuda.Event | int


class StreamClock:
    """Marks on one stream; `stream` is None on a CPU."""

    def __init__(self, stream: torch.cuda.Stream | None) -> None:
        self._stream = stream

    def mark(self) -> Mark:
        """This point in the stream."""
        if self._stream is None:
            return time.monotonic_ns()
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return event

    def wait(self, mark: Mark) -> int:
        """Block until the stream is there; the host's time then, in ns."""
        if not isinstance(mark, int):
            mark.synchronize()
        return time.monotonic_ns()

    def host_times(self, marks: Sequence[Mark], seen_ns: Sequence[int]) -> list[int]:
        """The host's time of each mark, strictly rising. `seen_ns`: what `wait` said of each but
        the first, in order.
        """
        assert len(marks) == len(seen_ns) + 1 >= 2
        first = marks[0]
        if isinstance(first, int):
            times = [mark for mark in marks if isinstance(mark, int)]
        else:
            since = [0]
            for mark in marks[1:]:
                assert not isinstance(mark, int)
                since.append(round(first.elapsed_time(mark) * 1e6))
            offset = min(seen - each for seen, each in zip(seen_ns, since[1:], strict=True))
            times = [offset + each for each in since]
        for place in range(1, len(times)):
            times[place] = max(times[place], times[place - 1] + 1)
        return times


def run_burst(
    clock: StreamClock, control: Control, max_steps: int, launch: Callable[[int], object]
) -> Timing:
    """Launch steps 0, 1, ... until there are `max_steps` or the burst is asked to end, the next
    while one runs, but never two ahead.
    """
    marks = [clock.mark()]
    seen_ns: list[int] = []
    for step in range(max_steps):
        launch(step)
        marks.append(clock.mark())
        if step:
            seen_ns.append(clock.wait(marks[step]))
            control.beat()
        if control.ending:
            break
    seen_ns.append(clock.wait(marks[-1]))
    started_ns, *ends_ns = clock.host_times(marks, seen_ns)
    finished_ns = max(seen_ns[-1], ends_ns[-1])
    return Timing(started_ns, finished_ns, 0, len(ends_ns), tuple(ends_ns))
