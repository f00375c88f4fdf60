"""The host of one engine: its one thread, which every operation passes, and its copy threads.

The engine's thread is serial: the time it spends on an operation delays that operation and all that
are submitted after it. So when an operation is ready for its device is known when it is submitted,
and no event is needed for it. CPU copies (staged mode, where host pages are not consecutive) use
all copy threads for one operation at a time, in the order in which they ask.
"""

from __future__ import annotations

from hicache.operations import Copy
from scenario.profile import HostProfile
from sim.curves import line
from sim.ranges import RangeWatch


class Host:
    """Engine time and CPU copies. `copy_threads`: the profile's number if None. `ranks`: engines
    that run in step on this host, each with a thread of its own; they share the copy threads.
    """

    def __init__(
        self,
        profile: HostProfile,
        watch: RangeWatch,
        copy_threads: int | None = None,
        ranks: int = 1,
    ) -> None:
        engine = profile.engine
        self._watch = watch
        self._copy_ns = {
            "d2h": engine.d2h_ns.value,
            "h2d": engine.h2d_ns.value,
            "h2s": engine.h2s_ns.value,
            "s2h": engine.s2h_ns.value,
        }
        self.write_ns = engine.h2s_ns.value
        self.step_ns = engine.step_ns.value
        self.burst_ns = self.step_ns if engine.burst_ns is None else engine.burst_ns.value
        self._overhead = None
        if profile.restore_overhead is not None:
            self._overhead = line(profile.restore_overhead.points)
            self._largest = profile.restore_overhead.points[-1][0]
        # When the engine's thread has dealt with all that it was asked for.
        self.free_ns = 0
        self._copies_free_ns = 0
        rates = line(profile.copy_bytes_per_s.points)
        threads = min(copy_threads or profile.copy_threads.value, rates.xs[-1])
        self._copy_rate = rates.at(threads) / ranks

    def issue_copy(self, now_ns: int, operation: Copy) -> int:
        """When the engine's thread, asked at `now_ns`, has the copy ready for its device."""
        took = self._copy_ns[operation.direction]
        if self._overhead is not None and operation.direction == "h2d":
            if operation.size_bytes > self._largest:
                self._watch.above("bytes of a restore", operation.size_bytes, self._largest)
            took += int(self._overhead.at(operation.size_bytes) + 0.5)
        self.free_ns = (now_ns if now_ns > self.free_ns else self.free_ns) + took
        return self.free_ns

    def copy(self, ready_ns: int, size_bytes: int) -> tuple[int, int]:
        """Start and end of a CPU copy of `size_bytes` that is asked for at `ready_ns`."""
        start_ns = max(ready_ns, self._copies_free_ns)
        self._copies_free_ns = start_ns + int(size_bytes * 1e9 / self._copy_rate + 0.5)
        return start_ns, self._copies_free_ns
