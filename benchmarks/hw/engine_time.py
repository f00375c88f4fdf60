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
import json
import os
import platform
import statistics
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine_rig import AtOnce, Live, Probe, replayed, with_pauses

from hicache import compiled
from hicache.operations import Copy
from hw import live
from hw.lanes import LiveLanes
from hw.live import LiveEnvironment, run_live
from hw.machine import ThreadMachine, Waiting
from hw.workers import WorkQueue

TARGET_US = 50.0
HANDOVERS = 3000


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
