"""The engine's own time for an operation, from a short live run: real devices, real threads.

    submitted (the engine's time) ---- wait ----> the device's call begins

A sample is that wait, for an operation whose device was idle: the engine's Python before and after
the submission, the hand-over to the worker's thread, and what other threads of the process keep it
from. A device's call itself is what the other probes measure. Two runs go through the same engine,
lanes and queues as `hicache run`, and are repeated while samples are missing:

    visits   sessions that come back to their prompts at random, four at once: every kind
    rounds   more prompts than L2 holds, in turn, two under way: each that comes back reads from L3

Refuses to judge a run: times alone are kept.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from calibrate.points import NO_FLOOR, Described, Effort, Floor, Point
from calibrate.sampling import Exhausted

if TYPE_CHECKING:
    from calibrate.probes.bench import Bench
    from hicache.kernel import Pending
    from hicache.operations import Completion, Operation
    from hicache.options import EngineOptions, LoadOptions
    from hicache.requests import Request
    from hw.device import Control, Device, Step, Timing

KINDS = ("prefill", "burst", "d2h", "h2d", "h2s", "s2h")
MOST_RUNS = 4  # of each of both
ROUNDS, IN_TURN, UNDER_WAY = 4, 6, 2


class EngineProbe:
    """See `calibrate.points.Probe`."""

    name = "engine"

    def __init__(self, bench: Bench, disk: str | None = None, requests: int = 48) -> None:
        """`disk`: the folder of L3's file. `requests`: of one run."""
        self._bench = bench
        self._disk = disk
        self._requests = requests
        self._waits: dict[str, list[int]] = {}
        self._runs = {"visits": 0, "rounds": 0}

    def describe(self) -> dict[str, Described]:
        return {
            f"engine.{kind}": Described(
                (), f"from the submission of a {kind} to its device's call, in a live run"
            )
            for kind in KINDS
        }

    def points(self, effort: Effort) -> list[Point]:
        return [Point(f"engine.{kind}", (), "fit", 1.0) for kind in KINDS]

    def open(self) -> None:
        _ = self._bench.model, self._bench.host
        self._again("visits")

    def floor(self, point: Point) -> Floor:
        return NO_FLOOR

    def sampler(self, point: Point) -> Callable[[], int]:
        kind = point.series.removeprefix("engine.")
        which = "rounds" if kind in ("s2h", "h2d") else "visits"

        def act() -> int:
            while not self._waits.get(kind):
                if self._runs[which] >= MOST_RUNS:
                    raise Exhausted(
                        f"no other {kind} found its device idle in {MOST_RUNS} runs of {which}"
                    )
                self._again(which)
            return self._waits[kind].pop()

        return act

    def close(self) -> None:
        self._waits.clear()

    def _again(self, which: str) -> None:
        """One more run of that kind; its waits are added."""
        from hicache.options import LoadOptions

        bench, number = self._bench, self._runs[which]
        self._runs[which] = number + 1
        page, longest = bench.page_size_tokens, _sizes(bench)["prompt"]
        if which == "rounds":
            load = LoadOptions(loop="closed", parallel=UNDER_WAY)
            self._run(_rounds(page, longest), load)
        else:
            # A few at once, and time for the disk in between.
            apart_ns = 300_000_000 if bench.where.type == "cuda" else 0
            requests = _sessions(self._requests, page, longest, apart_ns, number + 1)
            self._run(requests, LoadOptions())

    def _run(self, requests: list[Request], load: LoadOptions) -> None:
        """One live run; its waits are added."""
        from hicache.engine import Engine
        from hw.lanes import LiveLanes
        from hw.live import LiveEnvironment, run_live
        from hw.machine import ThreadMachine
        from hw.steps import StepsOf
        from hw.storage.file_store import FileStore
        from hw.tokens import TokenBook
        from hw.transfers.auto import Traffic, make_backend
        from hw.transfers.device import TransferDevice
        from hw.workers import WorkQueue

        bench = self._bench
        page, pages = bench.page_size_tokens, _sizes(bench)
        machine = ThreadMachine()
        env = LiveEnvironment(machine)
        store = FileStore(
            Path(self._disk) if self._disk else None, pages["l3"], bench.host.page_bytes,
            bench.host, backend="direct",
        )  # fmt: skip
        traffic = Traffic()
        down, up = (  # as in a run: one for each direction
            make_backend("direct", bench.pool, bench.host, bench.driver, traffic=traffic)
            for _ in range(2)
        )
        reading, writing = store.devices()
        devices = {
            "gpu": bench.model,
            "h2d": TransferDevice(down, "h2d"),
            "d2h": TransferDevice(up, "d2h"),
            "s2h": reading,
            "h2s": writing,
        }
        watched = {name: _Watched(device) for name, device in devices.items()}
        queues = {name: WorkQueue(name, [device], machine) for name, device in watched.items()}
        steps_of = StepsOf(TokenBook(page, bench.geometry.vocab_size).tokens)
        port = _Port(LiveLanes(env, queues, steps_of))
        engine = Engine(env, port, _options(bench, pages))
        steps_of.engine = engine
        collecting = gc.isenabled()
        gc.disable()
        try:
            engine.serve(requests, load)
            run_live(env, port.inner)
        finally:
            if collecting:
                gc.enable()
            port.inner.halt()
            for each in (down, up, store):
                each.close()
        self._keep(port, watched, machine.on_run_clock)

    def _keep(
        self, port: _Port, watched: dict[str, _Watched], run_clock: Callable[[int], int]
    ) -> None:
        """The waits of operations whose device had nothing else to do."""
        from hicache.operations import Copy, Decode

        for name, device in watched.items():
            free_ns = -1
            for operation, began_ns, ended_ns in device.calls:
                submitted_ns = port.submitted[id(operation)]
                if submitted_ns >= free_ns:
                    if isinstance(operation, Copy):
                        kind = name
                    else:
                        kind = "burst" if isinstance(operation, Decode) else "prefill"
                    wait_ns = run_clock(began_ns) - submitted_ns
                    self._waits.setdefault(kind, []).append(max(1, wait_ns))
                free_ns = run_clock(ended_ns)


class _Watched:
    """A device that notes when it was called and when it returned. Closing is left to its owner."""

    def __init__(self, inner: Device) -> None:
        self._inner = inner
        self.calls: list[tuple[Operation, int, int]] = []

    @property
    def name(self) -> str:
        return self._inner.name

    def run(self, operation: Operation, control: Control, steps: tuple[Step, ...] = ()) -> Timing:
        began_ns = time.monotonic_ns()
        timing = self._inner.run(operation, control, steps)
        self.calls.append((operation, began_ns + timing.setup_ns, timing.finished_ns))
        return timing

    def close(self) -> None:
        pass


class _Port:
    """Lanes that note when each operation was submitted."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.submitted: dict[int, int] = {}
        self._kept: list[Operation] = []  # so that no other object gets the same id

    def submit(self, operation: Operation) -> Pending[Completion]:
        pending = self.inner.submit(operation)
        self._kept.append(operation)
        self.submitted[id(operation)] = pending.submitted_ns
        return pending

    def end_burst(self, pending: Pending[Completion]) -> None:
        self.inner.end_burst(pending)


def _sizes(bench: Bench) -> dict[str, int]:
    """Pages of the tiers and of the longest prompt: prompts are evicted from L1 and from L2."""
    prompt = max(2, min(24, bench.scale.context_tokens // 2 // bench.page_size_tokens))
    return {
        "prompt": prompt,
        "l1": min(bench.pool.pages, 3 * prompt + 8),
        "l2": min(bench.host.pages, 4 * prompt),
        "l3": 60 * prompt,
    }


def _options(bench: Bench, pages: dict[str, int]) -> EngineOptions:
    """Of an engine that restores whatever it can."""
    from hicache.options import EngineOptions, RestoreOptions, SchedulerOptions

    page = bench.page_size_tokens
    return EngineOptions(
        page_size_tokens=page,
        bytes_per_token=bench.layout.page_bytes // page,
        device_pages=pages["l1"],
        host_pages=pages["l2"],
        storage_pages=pages["l3"],
        restore=RestoreOptions(policy="always"),
        scheduler=SchedulerOptions(
            max_running_requests=min(4, bench.scale.batch),
            chunk_tokens=bench.scale.chunk_tokens,
        ),
        page_ids="named",
    )


def _sessions(
    number: int, page: int, longest_pages: int, apart_ns: int, seed: int
) -> list[Request]:
    """Sessions in random turns, each prompt going on from its session's last one, four at once."""
    from hicache.requests import Request

    rng = Random(seed)
    sessions = max(6, number // 3)
    pages = [rng.randrange(max(1, longest_pages // 2), longest_pages) for _ in range(sessions)]
    made: list[Request] = []
    for each in range(number):
        session = rng.randrange(sessions)
        pages[session] = min(pages[session] + rng.randrange(0, 3), longest_pages)
        made.append(
            Request(
                each, each // 4 * apart_ns, pages[session] * page + rng.randrange(1, page + 1),
                rng.randrange(2, 12), ((session * 10_000, pages[session]),), pages[session], 0,
                f"session {session}",
            )
        )  # fmt: skip
    return made


def _rounds(page: int, pages: int) -> list[Request]:
    """Prompts of so many pages in turn, each several times: LRU has pushed it out by then."""
    from hicache.requests import Request

    return [
        Request(
            number, 0, pages * page + 1, 4, ((number % IN_TURN * 10_000, pages),), pages, 0,
            f"request {number}",
        )
        for number in range(ROUNDS * IN_TURN)
    ]  # fmt: skip
