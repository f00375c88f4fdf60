"""The engine live without a machine, for `engine_time.py`: what is run there, and its replay.

    requests --> Engine --> Recorder (--> Probe) --> LiveLanes --> queues --> Waits
                 record --> ReplayLanes --> the same counts

The real clock, inbox and threads, and all three tiers busy with named pages; only the devices are
stand-ins, which wait and need no Python meanwhile. Refuses to judge what it took.
"""

from __future__ import annotations

import gc
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from simpy import Environment

from hicache.engine import Engine
from hicache.kernel import drain
from hicache.operations import Copy, Decode, Operation
from hicache.options import EngineOptions, RestoreOptions
from hicache.record import Record, Recorder, ReplayLanes
from hicache.requests import Request
from hw.core import own_core
from hw.device import Control, Step, Timing
from hw.lanes import LiveLanes
from hw.live import LiveEnvironment, run_live
from hw.machine import ThreadMachine, Waiting
from hw.steps import StepsOf
from hw.tokens import TokenBook
from hw.workers import WorkQueue

PAGE = 64  # tokens
BYTES_PER_TOKEN = 147_456  # Qwen3-8B, bf16
VOCABULARY = 151_936
SESSIONS = 40
OPTIONS = EngineOptions(
    page_size_tokens=PAGE,
    bytes_per_token=BYTES_PER_TOKEN,
    device_pages=700,
    host_pages=1000,
    storage_pages=10_000,
    restore=RestoreOptions(policy="cost", probe_every=8),
    page_ids="named",
)


class Waits:
    """A device that waits as long as an H200 with an 8B model would take, in round numbers."""

    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, operation: Operation, control: Control, steps: tuple[Step, ...] = ()) -> Timing:
        started = time.monotonic_ns()
        if isinstance(operation, Decode):
            ends: list[int] = []
            while len(ends) < operation.max_steps and not (ends and control.ending):
                time.sleep(0.001)
                ends.append(time.monotonic_ns())
            return Timing(started, ends[-1], 0, len(ends), tuple(ends))
        if isinstance(operation, Copy):
            per_s = 50e9 if operation.direction in ("h2d", "d2h") else 8e9
            time.sleep(30e-6 + operation.size_bytes / per_s)
        else:
            time.sleep(0.001 + operation.tokens * 30e-6)
        return Timing(started, time.monotonic_ns())

    def close(self) -> None:
        pass


class AtOnce(Waits):
    """A device that takes no time."""

    def run(self, operation: Operation, control: Control, steps: tuple[Step, ...] = ()) -> Timing:
        now = time.monotonic_ns()
        return Timing(now, now)


def requests(number: int) -> list[Request]:
    """Agent-like sessions: every prompt goes on from the session's last one, sessions take turns at
    random, and come back after L1, L2, or both have lost them.
    """
    rng = Random(7)
    pages = [rng.randrange(5, 15) for _ in range(SESSIONS)]
    at_ns, made = 0, []
    for each in range(number):
        session = rng.randrange(SESSIONS)
        pages[session] = min(pages[session] + rng.randrange(1, 5), 225)
        at_ns += int(rng.expovariate(1 / 12e6))
        made.append(
            Request(
                each, at_ns, pages[session] * PAGE + rng.randrange(1, PAGE), rng.randrange(1, 40),
                ((session * 10_000, pages[session]),), pages[session], 0, f"session {session}",
            )
        )  # fmt: skip
    return made


class Probe:
    """Lanes that note the CPU time to each submission: from the start of its turn, and from the
    submission before it in the same turn, if there is one.
    """

    def __init__(self, env: LiveEnvironment, inner: LiveLanes) -> None:
        self._env, self._inner = env, inner
        self._before_us = 0.0
        self.us: list[float] = []
        self.own_us: list[float] = []
        env.at_turns_end(self._new_turn)

    def submit(self, operation: Operation):
        pending = self._inner.submit(operation)
        us = self._env.pump.submission_ns / 1e3
        self.us.append(us)
        self.own_us.append(us - self._before_us)
        self._before_us = us
        return pending

    def _new_turn(self) -> None:
        self._before_us = 0.0

    def end_burst(self, pending) -> None:
        self._inner.end_burst(pending)


def counts(engine: Engine) -> dict[str, object]:
    """What two runs of the same decisions have in common."""
    metrics = engine.metrics
    return {
        "rows": metrics.rows.tolist(),
        "status": engine.status(),
        "restores": metrics.restores,
        "evicted": [tier.evicted_pages for tier in engine.tree.tiers],
        "operations": {name: each.operations for name, each in metrics.directions.items()},
    }


class Live:
    """One live run, over with its end; its record must repeat its counts."""

    def __init__(self, number: int, waiting: Waiting, around: type[Probe] | None) -> None:
        """`around`: what the lanes are put into, if anything."""
        machine = ThreadMachine(waiting=waiting)
        self.env = env = LiveEnvironment(machine)
        queues = {
            name: WorkQueue(name, [Waits(name)] * (4 if name in ("s2h", "h2s") else 1), machine)
            for name in ("gpu", "h2d", "d2h", "s2h", "h2s")
        }
        steps_of = StepsOf(TokenBook(PAGE, VOCABULARY).tokens)
        lanes = LiveLanes(env, queues, steps_of)
        self.probe = None if around is None else around(env, lanes)
        lines: list[str] = []
        recorder = Recorder(env, self.probe or lanes, lines.append)
        env.at_turns_end(recorder.put_off())
        engine = steps_of.engine = Engine(env, recorder, OPTIONS)
        env.at_turns_end(engine.metrics.put_off())
        engine.serve(requests(number))
        gc.disable()
        with own_core() if waiting == "poll" else nullcontext():
            before_ns = time.thread_time_ns()
            assert run_live(env, lanes)
            self.thread_ns = time.thread_time_ns() - before_ns
        gc.enable()
        self.wall_s = machine.now_ns() / 1e9
        recorder.close()
        lanes.close()
        engine.check_integrity()
        assert engine.metrics.requests == number
        self.record = Record(lines)
        again, self.replay_ns = replayed(self.record, number, without_pauses)
        assert counts(again) == counts(engine), "the record does not repeat the run"


def replayed(record: Record, number: int, run) -> tuple[Engine, int]:
    """The engine in plain SimPy, and the CPU time it took. `run` runs an environment to its end and
    returns the CPU time that its pauses took.
    """
    env = Environment(0)
    lanes = ReplayLanes(env, record)
    engine = Engine(env, lanes, OPTIONS)
    asked = requests(number)
    gc.disable()
    before = time.thread_time_ns()
    engine.serve(asked)
    pauses_ns = run(env)
    took_ns = time.thread_time_ns() - before - pauses_ns
    gc.enable()
    lanes.finish()
    return engine, took_ns


def without_pauses(env: Environment) -> int:
    while drain(env, 1000):
        pass
    return 0


def with_pauses(env: Environment) -> int:
    """As a live run does, it sleeps before each instant: caches and clocks of the CPU are cold."""
    pauses_ns = 0
    while (at_ns := env.peek()) != float("inf"):
        if at_ns > env.now:
            before = time.thread_time_ns()
            time.sleep(min(at_ns - env.now, 3e6) / 1e9)
            pauses_ns += time.thread_time_ns() - before
        env.step()
    return pauses_ns
