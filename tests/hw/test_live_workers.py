"""Workers: order, errors, devices that do not answer, and runs that are stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from file_store_helpers import environment
from live_runs import QUEUES, PacedDevice, thread_lanes
from simpy import Environment as SimpyEnvironment

# isort: split
from engine_runs import drain
from lanes_contract import Watched
from small_workloads import Workload, random_call
from test_live_engine import EVERYTHING

from hicache.engine import Engine
from hicache.errors import DeviceError, RecordEnded, TransferError
from hicache.operations import Chunk, Copy, Decode, Lookup, Prefill
from hicache.record import Record, Recorder, ReplayLanes
from hw.device import Step, Timing
from hw.interrupt import Interrupt
from hw.lanes import LiveLanes
from hw.live import LiveEnvironment, run_live
from hw.machine import ThreadMachine
from hw.workers import Patience, WorkQueue

COPY = Copy("h2d", 1, 4096, 1)
PREFILL = Prefill((Chunk(0, 100, 0),), 100)
ROOT = Path(__file__).resolve().parents[2]


class Held(PacedDevice):
    """Blocks until `release` is set; `entered` says that it does."""

    def __init__(self, name: str = "a device that hangs") -> None:
        super().__init__(name)
        self.release = threading.Event()
        self.entered = threading.Event()
        self.finished = 0

    def pause(self, operation):
        self.entered.set()
        self.release.wait()
        self.finished += 1


def live(devices, patience: Patience | None = None) -> tuple[LiveEnvironment, LiveLanes]:
    """An environment and lanes over one thread for each of the named devices."""
    machine = ThreadMachine(check_every_s=0.02)
    env = LiveEnvironment(machine)
    queues = {
        name: WorkQueue(name, [device], machine, patience) for name, device in devices.items()
    }
    return env, LiveLanes(env, queues)


def test_operations_go_to_the_queue_of_their_type_and_direction():
    devices = {name: PacedDevice(name) for name in QUEUES}
    env = LiveEnvironment(ThreadMachine())
    lanes = thread_lanes(env, devices.__getitem__)
    copies = [Copy(direction, 1, 4096, 1) for direction in ("h2d", "d2h", "s2h", "h2s")]
    operations = [PREFILL, Decode(1, 5, 2), *copies, Lookup(3, ((0, 3),))]
    for operation in operations:
        Watched(env, lanes.submit(operation))
    assert run_live(env, lanes)
    lanes.close()
    assert [op for op, _ in devices["gpu"].seen] == operations[:2]
    for place, name in enumerate(("h2d", "d2h", "s2h", "h2s", "lookup"), 2):
        assert [op for op, _ in devices[name].seen] == [operations[place]]
        assert devices[name].closed == 1


def test_a_queue_takes_its_jobs_in_order():
    device = PacedDevice(pause_s=lambda: 0)
    env, lanes = live({"h2d": device})
    watched = [Watched(env, lanes.submit(Copy("h2d", n, 4096, 1))) for n in range(200)]
    assert run_live(env, lanes)
    lanes.close()
    assert [op.pages for op, _ in device.seen] == list(range(200))
    finished = [each.done.finished_ns for each in watched]
    assert finished == sorted(finished)
    starts = [each.done.started_ns for each in watched]
    assert all(a <= b for a, b in zip(finished, starts[1:], strict=False))


def test_several_workers_of_one_queue_work_at_once():
    barrier = threading.Barrier(4, timeout=20)

    class Together(PacedDevice):
        def pause(self, operation):
            barrier.wait()

    device, machine = Together(), ThreadMachine()
    env = LiveEnvironment(machine)
    lanes = LiveLanes(env, {"s2h": WorkQueue("s2h", [device] * 4, machine)})
    watched = [Watched(env, lanes.submit(Copy("s2h", 1, 4096, 1))) for _ in range(8)]
    assert run_live(env, lanes)
    lanes.close()
    assert len(watched) == sum(each.done.stamp_ns > 0 for each in watched)
    assert device.closed == 1


def test_steps_are_made_when_an_operation_is_submitted_and_handed_to_its_device():
    batch = {"tokens": 1}
    main = threading.get_ident()

    def steps_of(operation):
        assert threading.get_ident() == main
        return (Step(7, 1, 2, batch["tokens"], ((3, 1),)),)

    gpu, link = PacedDevice(), PacedDevice()
    machine = ThreadMachine()
    env = LiveEnvironment(machine)
    queues = {"gpu": WorkQueue("gpu", [gpu], machine), "h2d": WorkQueue("h2d", [link], machine)}
    lanes = LiveLanes(env, queues, steps_of)
    for operation in (PREFILL, COPY, Decode(1, 4, 1)):
        lanes.submit(operation)
        batch["tokens"] += 1
    assert run_live(env, lanes)
    lanes.close()
    assert [steps[0].tokens for _, steps in gpu.seen] == [1, 3]
    assert link.seen == [(COPY, ())]


def test_an_operation_that_no_device_serves_is_an_error_that_says_so():
    _, lanes = live({"h2d": PacedDevice()})
    with pytest.raises(DeviceError, match="queue d2h"):
        lanes.submit(Copy("d2h", 1, 4096, 1))
    lanes.close()


def test_a_failed_copy_is_an_answer_and_the_queue_goes_on():
    class Fails(PacedDevice):
        def pause(self, operation):
            if operation.pages == 1:
                raise TransferError("EIO")

    env, lanes = live({"h2d": Fails()})
    first, second = (Watched(env, lanes.submit(Copy("h2d", n, 4096, 1))) for n in (1, 2))
    assert run_live(env, lanes)
    lanes.close()
    ((seen_ns, error),) = first.answers
    assert isinstance(error, TransferError)
    assert seen_ns > 0
    assert second.done.operation.pages == 2


def test_what_a_device_raises_ends_the_run_and_names_the_operation():
    class Breaks(PacedDevice):
        def pause(self, operation):
            link.entered.wait(20)
            raise ZeroDivisionError("not my day")

    link, gpu = Held(), Breaks("GPU (tiny)")
    env, lanes = live({"h2d": link, "gpu": gpu})
    lanes.submit(COPY)
    lanes.submit(PREFILL)
    lanes.submit(PREFILL)
    threading.Timer(0.2, link.release.set).start()
    with pytest.raises(DeviceError) as caught:
        run_live(env, lanes)
    for part in ("GPU (tiny) (queue gpu)", "operation 1", "Prefill", "ZeroDivisionError", "my day"):
        assert part in str(caught.value)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert link.finished == 1, "the copy under way was left alone"
    assert len(gpu.seen) == 1, "a broken device got another job"
    lanes.close()
    assert (link.closed, gpu.closed) == (1, 1)


def test_a_device_that_returns_nothing_ends_the_run():
    class Forgets(PacedDevice):
        def run(self, operation, control, steps=()):
            return None

    env, lanes = live({"h2d": Forgets("PCIe (mine)")})
    lanes.submit(COPY)
    with pytest.raises(DeviceError, match=r"PCIe \(mine\).*operation 0"):
        run_live(env, lanes)
    lanes.close()


# ------------------------------------------------------------------------------- no answer


def test_a_device_that_no_longer_answers_is_an_error_and_no_hang():
    disk, gpu = Held("L3 file (direct)"), PacedDevice("GPU (tiny)")
    env, lanes = live({"s2h": disk, "gpu": gpu}, Patience(0.3, 0, 0, 0))
    watched = Watched(env, lanes.submit(PREFILL))
    lanes.submit(Copy("s2h", 3, 12288, 2))
    lanes.submit(Copy("s2h", 1, 4096, 1))
    began = time.monotonic()
    with pytest.raises(DeviceError) as caught:
        run_live(env, lanes)
    assert 0.3 <= time.monotonic() - began < 5
    for part in ("L3 file (direct) (queue s2h)", "no longer answers", "operation 1", "pages=3"):
        assert part in str(caught.value)
    assert watched.done.number == 0
    lanes.close()
    assert (disk.closed, gpu.closed) == (0, 1), "a stuck device cannot be closed, another can"
    disk.release.set()


def test_the_watchdog_looks_also_while_others_are_busy():
    disk, gpu = Held(), PacedDevice(pause_s=lambda: 1e-4)
    env, lanes = live({"s2h": disk, "gpu": gpu}, Patience(0.3, 0, 0, 0))
    lanes.submit(Copy("s2h", 3, 12288, 2))

    def again(event=None) -> None:
        if not disk.release.is_set():
            lanes.submit(PREFILL).callbacks.append(again)

    again()
    with pytest.raises(DeviceError, match="queue s2h"):
        run_live(env, lanes)
    disk.release.set()
    lanes.close()


@pytest.mark.parametrize("beats", [True, False])
def test_a_long_burst_lives_as_long_as_it_gets_on(beats):
    class Quiet(PacedDevice):
        def run(self, operation, control, steps=()):
            if not beats:
                control = type("Mute", (), {"beat": lambda self: None, "ending": False})()
            return super().run(operation, control, steps)

    env, lanes = live({"gpu": Quiet(pause_s=lambda: 0.1)}, Patience(0.6, 0, 0, 0))
    burst = Watched(env, lanes.submit(Decode(1, 10, 12)))
    if beats:
        assert run_live(env, lanes)
        assert burst.done.steps == 12
    else:
        with pytest.raises(DeviceError, match="no longer answers"):
            run_live(env, lanes)
    with suppress(DeviceError):
        lanes.close()


def test_large_operations_are_given_more_time():
    patience = Patience(base_s=1, s_per_gib=8, s_per_token=0.25, s_per_step=2)
    assert patience.limit_ns(Copy("h2d", 1, 1 << 29, 1)) == 5_000_000_000
    assert patience.limit_ns(PREFILL) == 26_000_000_000
    assert patience.limit_ns(Decode(4, 100, 3)) == 7_000_000_000
    assert Patience().limit_ns(COPY) >= 60_000_000_000


# ------------------------------------------------------------------------------- Ctrl-C


def interrupt(event=None) -> None:
    signal.raise_signal(signal.SIGINT)


def test_ctrl_c_waits_for_what_is_under_way_and_drops_what_is_queued():
    link = Held()
    env, lanes = live({"h2d": link})
    seen = [Watched(env, lanes.submit(COPY)) for _ in range(3)]
    after: list[int] = []
    env.timeout(10_000_000).callbacks.append(interrupt)
    env.timeout(10_000_000).callbacks.append(lambda event: after.append(1))
    env.timeout(60_000_000_000)
    threading.Timer(0.2, link.release.set).start()
    assert run_live(env, lanes) is False
    assert after == [1], "an instant was left half played"
    assert link.finished == 1
    assert [each.answers for each in seen] == [[], [], []]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    lanes.submit(COPY)  # a process that is tidied up may still ask: nothing is begun
    lanes.close()
    assert len(link.seen) == link.closed == 1


def test_ctrl_c_ends_a_burst_at_its_next_step():
    gpu = PacedDevice(pause_s=lambda: 0.02)
    env, lanes = live({"gpu": gpu})
    lanes.submit(Decode(1, 10, 100_000))
    env.timeout(50_000_000).callbacks.append(interrupt)
    began = time.monotonic()
    assert run_live(env, lanes) is False
    lanes.close()
    assert time.monotonic() - began < 10


def test_ctrl_c_while_a_device_is_stuck_is_an_error_and_no_hang():
    link = Held("PCIe (staged)")
    env, lanes = live({"h2d": link}, Patience(0.3, 0, 0, 0))
    lanes.submit(COPY)
    env.timeout(10_000_000).callbacks.append(interrupt)
    with pytest.raises(DeviceError, match=r"PCIe \(staged\).*no longer answers"):
        run_live(env, lanes)
    link.release.set()
    lanes.close()


def test_a_second_ctrl_c_does_not_wait():
    link = Held()
    env, lanes = live({"h2d": link})
    lanes.submit(COPY)
    env.timeout(10_000_000).callbacks.append(interrupt)
    env.timeout(60_000_000_000)
    main = threading.main_thread().ident
    assert main is not None
    threading.Timer(0.3, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_live(env, lanes)
    assert time.monotonic() - began < 10
    link.release.set()
    lanes.close()


def test_a_second_ctrl_c_does_not_wait_for_the_event_under_way_either():
    env, lanes = live({"h2d": PacedDevice()})
    reached: list[str] = []

    def event_that_takes_long(event) -> None:
        interrupt()
        reached.append("after the first")
        interrupt()
        reached.append("after the second")

    env.timeout(0).callbacks.append(event_that_takes_long)
    assert run_live(env, lanes) is False
    lanes.close()
    assert reached == ["after the first"]


def test_ctrl_c_does_not_wait_for_a_request_that_does_not_come():
    env, lanes = live({"h2d": PacedDevice()})
    reached: list[str] = []

    def requests():
        yield 1
        interrupt()
        reached.append("read on")
        yield 2

    stop = Interrupt(env.machine)
    reading = stop.reading(requests())
    env.timeout(0).callbacks.append(lambda event: reached.extend([next(reading), next(reading)]))
    assert run_live(env, lanes, interrupt=stop) is False
    lanes.close()
    assert reached == []
    assert list(Interrupt(env.machine).reading([1, 2])) == [1, 2]


def test_an_interrupted_run_keeps_what_is_done_and_its_record_says_that_it_was_cut_off():
    rng = Random(4)
    calls = tuple(random_call(rng) for _ in range(40))
    workload = Workload(EVERYTHING, calls)
    env = LiveEnvironment(ThreadMachine())
    lanes = thread_lanes(env, lambda name: PacedDevice(name, lambda: 0.0005))
    lines: list[str] = []
    engine = Engine(env, Recorder(env, lanes, lines.append), workload.options)
    engine.scheduler.on_end = lambda request: request.number == 15 and interrupt()
    engine.serve(workload.requests())
    assert run_live(env, lanes) is False
    lanes.close()
    engine.check_integrity()
    assert 0 < engine.metrics.requests < 40
    replay_env = SimpyEnvironment(0)
    replay = ReplayLanes(replay_env, Record(lines))
    again = Engine(replay_env, replay, workload.options)
    again.serve(workload.requests())
    with pytest.raises(RecordEnded):
        drain(replay_env)
    # The replay ends within the last event: where an operation is submitted that was never over.
    done = len(again.metrics.rows)
    assert again.metrics.rows == engine.metrics.rows[:done]
    assert again.metrics.requests > 5


STUCK = """
    import sys, threading
    sys.path.insert(0, {folder!r})
    from live_runs import PacedDevice, thread_lanes
    from hicache.operations import Copy
    from hw.live import LiveEnvironment, run_live
    from hw.machine import ThreadMachine
    from hw.workers import Patience

    class ForEver(PacedDevice):
        def pause(self, operation):
            print("under way", flush=True)
            threading.Event().wait()

    env = LiveEnvironment(ThreadMachine(check_every_s=0.02))
    lanes = thread_lanes(env, lambda name: ForEver("PCIe (direct)"), patience=Patience({limit}))
    lanes.submit(Copy("d2h", 5, 4096, 1))
    env.timeout(10**12)
    run_live(env, lanes)
"""


def stuck(limit: float) -> subprocess.Popen[str]:
    """A process whose device blocks for ever."""
    script = textwrap.dedent(STUCK).format(folder=str(Path(__file__).parent), limit=limit)
    return subprocess.Popen(
        [sys.executable, "-c", script], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=environment(),
    )  # fmt: skip


def test_a_process_whose_device_blocks_for_ever_comes_to_its_end():
    with stuck(0.3) as process:
        _, said = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "PCIe (direct) (queue d2h) no longer answers" in said
    assert "operation 0" in said


def test_ctrl_c_twice_ends_such_a_process_at_once():
    with stuck(1000) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "under way\n"
        for _ in range(2):
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == -signal.SIGINT


def test_a_timing_is_on_the_runs_clock():
    class Slow(PacedDevice):
        def run(self, operation, control, steps=()):
            now = time.monotonic_ns()
            time.sleep(0.002)
            return Timing(now, now + 1_000_000)

    env, lanes = live({"h2d": Slow()})
    time.sleep(0.05)
    watched = Watched(env, lanes.submit(COPY))
    assert run_live(env, lanes)
    lanes.close()
    assert watched.done.finished_ns - watched.done.started_ns == 1_000_000
    assert 0 <= watched.done.started_ns < 40_000_000
