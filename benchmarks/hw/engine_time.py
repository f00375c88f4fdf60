"""What the engine's own thread costs in a live run: CPU time for each operation.

    python benchmarks/hw/engine_time.py [--requests 600] [--waiting poll] [--out engine_time.json]

The whole engine, all three tiers busy with named pages, on the real clock, the real inbox and one
thread for each queue. Behind the queues stand devices that wait as long as a fast machine would
take and need no Python meanwhile, so that what is measured is the engine. Targets and ceilings of
the same run:

* CPU time of the engine's thread for each operation, from the completion (or timer, or operation)
  before it until it is with its queue, as a mean (target: 50 us). One look at the thread's
  clock for each operation and turn is in it; waiting, and waking up from it, are
  not. Nothing else of this benchmark is: it is a run of its own;
* the same in a second run with a probe around each submission, which costs a few microseconds
  itself: the mean there, and p50, p99 and largest of each operation's own share; and of the time
  from the start of its turn;
* all of the thread's CPU time outside waiting, for each operation: also what it does once the
  operations of a turn are under way, such as the record's lines; and with waiting and waking up;
* the same record replayed in plain SimPy: the engine without clock, inbox and threads; and once
  more with a sleep before each instant, as a live run has them: what cold caches cost;
* from a device's finish to the engine's first look at it, against a bare hand-over between two
  threads; also beside a worker that runs Python all the time, as one that launches a model does.

Correctness first: the record must repeat every count in plain SimPy. Needs no GPU. Exit code 1: a
target was missed.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import sys
import threading
import time
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from simpy import Environment

from hicache import compiled
from hicache.engine import Engine
from hicache.kernel import drain
from hicache.operations import Copy, Decode, Operation
from hicache.options import EngineOptions, RestoreOptions
from hicache.record import Record, Recorder, ReplayLanes
from hicache.requests import Request
from hw import live
from hw.core import own_core
from hw.device import Control, Step, Timing
from hw.lanes import LiveLanes
from hw.live import LiveEnvironment, run_live
from hw.machine import ThreadMachine, Waiting
from hw.steps import StepsOf
from hw.tokens import TokenBook
from hw.workers import WorkQueue

TARGET_US = 50.0
PAGE = 64  # tokens
BYTES_PER_TOKEN = 147_456  # Qwen3-8B, bf16
VOCABULARY = 151_936
SESSIONS = 40
HANDOVERS = 3000
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


def engine_part(number: int, waiting: Waiting) -> dict[str, object]:
    """The engine live, live with a probe, and replayed."""
    run = Live(number, waiting, None)
    probed = Live(number, waiting, Probe)
    assert probed.probe is not None
    _, paused_ns = replayed(run.record, number, with_pauses)
    kinds: dict[str, int] = {}
    for entry in run.record.endings.values():
        kind = entry[2].direction if isinstance(entry[2], Copy) else type(entry[2]).__name__
        kinds[kind] = kinds.get(kind, 0) + 1
    assert set(kinds) == {"Prefill", "Decode", "d2h", "h2d", "h2s", "s2h"}, kinds
    env, operations = run.env, run.env.operations
    return {
        "requests": number,
        "wall_s": round(run.wall_s, 2),
        "operations": operations,
        "operations_by_kind": kinds,
        "compiled": compiled.in_use(),
        "waiting": waiting,
        "submission_us_per_operation": round(env.submission_ns_per_operation / 1e3, 1),
        "with_probe_us_per_operation": round(probed.env.submission_ns_per_operation / 1e3, 1),
        "own_share_us": spread(probed.probe.own_us),
        "engine_us_per_operation": round(env.engine_ns_per_operation / 1e3, 1),
        "thread_us_per_operation": round(run.thread_ns / 1e3 / operations, 1),
        "clock_us": clock_us(),
        "to_submission_us": spread(probed.probe.us),
        "longest_turn_us": round(env.pump.longest_turn_ns / 1e3, 1),
        "engine_share_of_wall": round(env.pump.engine_ns / 1e9 / run.wall_s, 4),
        "replay_us_per_operation": round(run.replay_ns / 1e3 / operations, 1),
        "replay_with_pauses_us_per_operation": round(paused_ns / 1e3 / operations, 1),
        "record_repeats": True,
    }


def clock_us() -> float:
    """us for one look at the thread's clock, in a loop."""
    before = time.thread_time_ns()
    for _ in range(1000):
        time.thread_time_ns()
    return round((time.thread_time_ns() - before) / 1e6, 2)


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


def spread(values: list[float]) -> dict[str, float]:
    """p50, p99 and the largest."""
    values = sorted(values)
    return {
        "p50": round(statistics.median(values), 1),
        "p99": round(values[int(len(values) * 0.99)], 1),
        "max": round(values[-1], 1),
    }


def notice_part(beside: str, interval_s: float) -> tuple[dict[str, float], float]:
    """us from a device's finish to the engine's look at it, one copy at a time, and the CPU time
    of one: what the live kernel costs where no engine stands on it.
    """
    machine = ThreadMachine()
    env = LiveEnvironment(machine)
    lanes = LiveLanes(env, {"h2d": WorkQueue("h2d", [AtOnce("h2d")], machine)})
    us: list[float] = []
    over = threading.Event()

    def python_all_the_time() -> None:
        number = 0
        while not over.is_set():
            number += 1

    def again(event=None) -> None:
        if event is not None:
            us.append((machine.now_ns() - event.value.finished_ns) / 1e3)
        if len(us) < HANDOVERS and machine.now_ns() < 8e9:
            lanes.submit(Copy("h2d", 1, 1, 1)).callbacks.append(again)

    if beside == "python":
        threading.Thread(target=python_all_the_time, daemon=True).start()
    ours, live.SWITCH_INTERVAL_S = live.SWITCH_INTERVAL_S, interval_s
    again()
    assert run_live(env, lanes)
    live.SWITCH_INTERVAL_S = ours
    over.set()
    lanes.close()
    return spread(us), round(env.engine_ns_per_operation / 1e3, 1)


def handover_floor() -> dict[str, float]:
    """us for a bare hand-over from one thread to another that waits, by a SimpleQueue."""
    there: SimpleQueue[int] = SimpleQueue()
    back: SimpleQueue[int] = SimpleQueue()

    def answer() -> None:
        for _ in range(HANDOVERS):
            there.get()
            back.put(time.monotonic_ns())

    threading.Thread(target=answer, daemon=True).start()
    us: list[float] = []
    for _ in range(HANDOVERS):
        there.put(0)
        sent = back.get()
        us.append((time.monotonic_ns() - sent) / 1e3)
    return spread(us)


def python_loop_ms() -> float:
    """A fixed loop of plain Python, the least of five: how fast this machine is, and how busy."""
    best = float("inf")
    for _ in range(5):
        before = time.thread_time_ns()
        total = 0
        for number in range(1_000_000):
            total += number
        best = min(best, (time.thread_time_ns() - before) / 1e6)
    return round(best, 1)


def main() -> int:
    parser = argparse.ArgumentParser(description="CPU time of the engine in a live run")
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--waiting", choices=("sleep", "poll"), default="sleep")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    found: dict[str, object] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": "python " + " ".join(["benchmarks/hw/engine_time.py", *sys.argv[1:]]),
        "machine": {
            "cpu_count": os.cpu_count(),
            "processor": platform.processor() or platform.machine(),
            "python": platform.python_version(),
        },
    }
    run = found["engine"] = engine_part(arguments.requests, arguments.waiting)
    found["python_loop_ms"] = python_loop_ms()
    found["handover_floor_us"] = handover_floor()
    default_s = sys.getswitchinterval()
    alone, found["kernel_us_per_operation"] = notice_part("nothing", live.SWITCH_INTERVAL_S)
    found["notice_us"] = {
        "alone": alone,
        "beside_python": notice_part("python", live.SWITCH_INTERVAL_S)[0],
        "beside_python_default_switch_interval": notice_part("python", default_s)[0],
    }
    cost = run["submission_us_per_operation"]
    found["target_us"], found["held"] = TARGET_US, cost <= TARGET_US
    print(
        f"{run['requests']} requests, {run['operations']} operations in {run['wall_s']} s; "
        "the record repeats them"
    )
    print(f"a loop of a million additions, ms  {found['python_loop_ms']:8.1f}")
    engine = "compiled" if run["compiled"] else "interpreted"
    print(f"to a submission, CPU us            {cost:8.1f}   target {TARGET_US:.0f} ({engine})")
    print(f"  with a probe around each         {run['with_probe_us_per_operation']:8.1f}")
    print(f"  one look at the thread's clock   {run['clock_us']:8.2f}")
    print(f"all of the engine, CPU us          {run['engine_us_per_operation']:8.1f}")
    print(f"  with waiting and waking up       {run['thread_us_per_operation']:8.1f}")
    print(f"  replayed in plain SimPy          {run['replay_us_per_operation']:8.1f}")
    print(f"  the same, sleeping in between    {run['replay_with_pauses_us_per_operation']:8.1f}")
    print(f"  live kernel without an engine    {found['kernel_us_per_operation']:8.1f}")
    print(f"  longest turn                     {run['longest_turn_us']:8.1f}")
    rows = {
        "an operation's own share, CPU us": run["own_share_us"],
        "start of turn to submission, CPU us": run["to_submission_us"],
        "bare hand-over between threads, us": found["handover_floor_us"],
        "finish to the engine's look, us": found["notice_us"]["alone"],
        f"  beside Python, {live.SWITCH_INTERVAL_S * 1e3} ms": found["notice_us"]["beside_python"],
        f"  beside Python, {default_s * 1e3} ms": found["notice_us"][
            "beside_python_default_switch_interval"
        ],
    }
    for name, values in rows.items():
        print(f"{name:36}" + "".join(f"{key} {value:9.1f}   " for key, value in values.items()))
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0 if found["held"] else 1


if __name__ == "__main__":
    sys.exit(main())
