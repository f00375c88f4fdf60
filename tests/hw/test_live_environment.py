"""SimPy on a machine's clock: what fires when, in which order, and what it costs."""

from __future__ import annotations

import sys
import threading
import time

import pytest
from live_runs import VirtualMachine
from simpy import Environment
from simpy.core import EmptySchedule

from hicache.errors import DeviceError, TransferError
from hicache.kernel import Pending, Sleep, Task
from hicache.operations import Copy, Decode, Lookup
from hw.device import Timing
from hw.live import SWITCH_INTERVAL_S, LiveEnvironment, run_live
from hw.machine import Input, Report, ThreadMachine

COPY = Copy("h2d", 1, 4096, 1)


class Scripted:
    """A machine that answers what the test wrote down: (clock, entries or None) for each wait."""

    def __init__(self, *answers) -> None:
        self.answers = list(answers)
        self.clock = 0
        self.asked: list[int | None] = []

    def now_ns(self) -> int:
        return self.clock

    def tell(self, entry) -> None:
        raise AssertionError("nobody tells a script anything")

    def wait(self, until_ns):
        self.asked.append(until_ns)
        self.clock, entries = self.answers.pop(0)
        assert entries is not None or self.clock >= until_ns, "a test that lies about the clock"
        return entries


def under_way(env: LiveEnvironment, log: list, operation=COPY) -> Pending:
    """An operation that is begun, and noted in `log` with its time when it is over."""
    pending = Pending(env, next(env.numbers), int(env.now))
    env.begin(pending)

    def seen(event) -> None:
        event._defused = True
        log.append((pending.number, int(env.now)))

    assert pending.callbacks is not None
    pending.callbacks.append(seen)
    return pending


def report(pending: Pending, finished_ns: int, reported_ns: int | None = None, **timing) -> Report:
    at = finished_ns if reported_ns is None else reported_ns
    return Report(pending, COPY, "a device", at, Timing(0, finished_ns, **timing))


def timer(env: Environment, at_ns: int, log: list) -> None:
    async def wait() -> None:
        await Sleep(env, at_ns)
        log.append(("timer", int(env.now)))

    Task(wait())


def test_a_completion_is_seen_at_the_time_it_was_finished():
    machine, log = Scripted(), []
    env = LiveEnvironment(machine)
    pending = under_way(env, log)
    timer(env, 100, log)
    machine.answers = [(90, [report(pending, 40)]), (90, None), (100, None)]
    assert run_live(env)
    assert log == [(0, 40), ("timer", 100)]
    assert machine.asked == [100, 40, 100]


def test_a_late_one_comes_after_what_was_seen_before():
    machine, log = Scripted(), []
    env = LiveEnvironment(machine)
    pending = under_way(env, log)
    timer(env, 100, log)
    machine.answers = [(100, None), (140, [report(pending, 40, 139)]), (140, None)]
    assert run_live(env)
    assert log == [("timer", 100), (0, 101)]


def test_it_waits_for_the_clock_also_where_a_stamp_lies_ahead():
    """A timer at 100 is due at 100; so what comes in late is at 101, and the clock must be, too."""
    machine, log = Scripted(), []
    env = LiveEnvironment(machine)
    pending = under_way(env, log)
    timer(env, 100, log)
    machine.answers = [(100, None), (100, [report(pending, 40, 99)]), (100, []), (101, None)]
    assert run_live(env)
    assert machine.asked == [100, None, 101, 101]
    assert log == [("timer", 100), (0, 101)]


def test_at_one_instant_timers_come_first_then_inputs_then_completions_by_number():
    machine, log = Scripted(), []
    env = LiveEnvironment(machine)
    first, second, third = (under_way(env, log) for _ in range(3))
    timer(env, 70, log)
    machine.answers = [
        (60, [report(third, 70, 99), report(first, 70, 99)]),
        (69, []),
        (70, [Input(lambda: log.append(("input", int(env.now)))), report(second, 70, 99)]),
        (99, None),
    ]
    assert run_live(env)
    assert log == [("timer", 70), ("input", 70), (0, 70), (1, 70), (2, 70)]


def test_a_failure_is_stamped_when_it_was_reported():
    machine, log = Scripted(), []
    env = LiveEnvironment(machine)
    pending = under_way(env, log)
    failed = Report(pending, COPY, "a device", 55, TransferError("no"))
    machine.answers = [(60, [failed]), (60, None)]
    assert run_live(env)
    assert log == [(0, 55)]
    assert isinstance(pending.value, TransferError)


@pytest.mark.parametrize(
    ("timing", "expected"),
    [
        (Timing(50, 60), (50, 60)),
        (Timing(-9, 60), (10, 60)),
        (Timing(-9, -5), (10, 10)),
        (Timing(70, 60), (60, 60)),
        (Timing(50, 900), (50, 80)),
        (Timing(500, 900), (80, 80)),
    ],
)
def test_a_devices_clock_that_is_off_is_put_right(timing, expected):
    """Submitted at 10, reported at 80: it ran in between, whatever its own clock says."""
    machine = Scripted((10, None))
    env = LiveEnvironment(machine)
    log: list[tuple[int, int]] = []
    pendings: list[Pending] = []
    env.timeout(10).callbacks.append(lambda event: pendings.append(under_way(env, log)))
    env.step()
    machine.answers = [
        (80, [Report(pendings[0], COPY, "a device", 80, timing._replace(setup_ns=10_000))]),
        (80, None),
    ]
    assert run_live(env)
    done = pendings[0].value
    assert (done.submitted_ns, done.started_ns, done.finished_ns) == (10, *expected)
    assert done.stamp_ns == max(done.finished_ns, 11) == log[0][1]
    assert done.setup_ns == done.finished_ns - 10


def test_so_are_the_ends_of_a_bursts_steps():
    machine = Scripted()
    env = LiveEnvironment(machine)
    burst = Decode(2, 100, 5)
    pending = under_way(env, [], burst)
    answer = Report(pending, burst, "GPU (x)", 50, Timing(20, 60, 0, 4, (15, 30, 40, 60)))
    machine.answers = [(50, [answer]), (50, None)]
    assert run_live(env)
    done = pending.value
    assert (done.started_ns, done.finished_ns, done.steps) == (20, 50, 4)
    assert done.step_ends_ns == (20, 30, 40, 50)


@pytest.mark.parametrize(
    ("operation", "steps", "ends"),
    [
        (Decode(2, 100, 5), 0, ()),
        (Decode(2, 100, 5), 2, (1,)),
        (Decode(2, 100, 5), 6, (1, 2, 3, 4, 5, 6)),
        (COPY, 1, (1,)),
        (COPY, 0, (1,)),
        (Lookup(3, ((0, 3),)), 4, ()),
        (Lookup(3, ((0, 3),)), 2, (1, 2)),
        (Copy("s2h", 2, 8192, 1, (), (), ((0, 2),)), 3, ()),
    ],
)
def test_a_device_that_counts_its_steps_wrong_ends_the_run(operation, steps, ends):
    machine = Scripted()
    env = LiveEnvironment(machine)
    pending = under_way(env, [], operation)
    answer = Report(pending, operation, "GPU (x)", 9, Timing(1, 9, 0, steps, ends))
    machine.answers = [(9, [answer])]
    with pytest.raises(DeviceError, match=r"GPU \(x\).*operation 0"):
        run_live(env)


@pytest.mark.parametrize(
    "operation", [Lookup(3, ((0, 3),)), Copy("h2s", 3, 9, 1, (), (), ((0, 3),))]
)
def test_a_store_answers_with_a_number_of_pages(operation):
    for answer in range(4):
        machine = Scripted()
        env = LiveEnvironment(machine)
        pending = under_way(env, [], operation)
        said = Report(pending, operation, "a store", 9, Timing(1, 9, steps=answer))
        machine.answers = [(9, [said]), (9, None)]
        assert run_live(env)
        assert (pending.value.answer, pending.value.step_ends_ns) == (answer, ())


def test_an_operation_that_is_reported_twice_is_a_bug():
    machine = Scripted()
    env = LiveEnvironment(machine)
    pending = under_way(env, [])
    machine.answers = [(9, [report(pending, 5), report(pending, 5)])]
    with pytest.raises(AssertionError, match="twice"):
        run_live(env)


def test_a_run_is_over_when_nothing_is_pending_and_nothing_under_way():
    env = LiveEnvironment(Scripted())
    with pytest.raises(EmptySchedule):
        env.step()
    assert run_live(env)
    env.timeout(0)
    assert run_live(env)
    assert env.machine.asked == []


def test_the_present_instant_is_played_without_asking():
    machine, log = Scripted(), []
    env = LiveEnvironment(machine)
    timer(env, 0, log)
    timer(env, 0, log)
    assert run_live(env)
    assert log == [("timer", 0)] * 2


def test_timers_of_a_thread_machine_fire_when_they_are_due():
    machine, seen = ThreadMachine(), []
    env = LiveEnvironment(machine)
    for at_ns in (30_000_000, 10_000_000, 10_000_000, 20_000_000):
        env.timeout(at_ns).callbacks.append(
            lambda event, at_ns=at_ns: seen.append((at_ns, int(env.now), machine.now_ns()))
        )
    assert run_live(env)
    assert [at_ns for at_ns, _, _ in seen] == [10_000_000, 10_000_000, 20_000_000, 30_000_000]
    assert all(at_ns == now <= clock for at_ns, now, clock in seen)


def test_the_clock_starts_with_the_run_and_not_before():
    machine = ThreadMachine()
    env = LiveEnvironment(machine)
    time.sleep(0.05)  # weights are loaded, graphs are captured ...
    under_way(env, [])
    time.sleep(0.05)
    assert 50_000_000 <= machine.now_ns() < 95_000_000


def test_another_thread_ends_a_wait():
    machine, log = ThreadMachine(), []
    env = LiveEnvironment(machine)
    env.timeout(20_000_000_000)
    main = threading.get_ident()

    def act() -> None:
        log.append((threading.get_ident() == main, int(env.now), machine.now_ns()))
        raise KeyboardInterrupt

    threading.Timer(0.03, lambda: env.call_soon_threadsafe(act)).start()
    assert not run_live(env)
    ((on_this_thread, now, clock),) = log
    assert on_this_thread
    assert 0 < now <= clock < 10_000_000_000


def test_an_input_happens_though_events_come_all_the_time():
    env = LiveEnvironment(ThreadMachine())
    log: list[int] = []

    async def on_and_on() -> None:
        while not log:
            await Sleep(env, 100_000)

    Task(on_and_on())
    threading.Timer(0.02, lambda: env.call_soon_threadsafe(lambda: log.append(1))).start()
    assert run_live(env)
    assert log == [1]


def test_a_machine_returns_everything_that_came_in_and_none_when_the_time_is_up():
    machine = ThreadMachine()
    assert machine.wait(0) is None
    entries = [Input(lambda: None) for _ in range(3)]
    for entry in entries:
        machine.tell(entry)
    assert list(machine.wait(0) or ()) == entries
    before = machine.now_ns()
    assert machine.wait(before + 5_000_000) is None
    assert machine.now_ns() >= before + 5_000_000


def test_a_wait_of_nanoseconds_ends_though_something_was_taken_without_waiting():
    """As SimpleQueue.get(timeout=43e-9) does not: after such a `get` it waits for ever."""
    ended = threading.Event()

    def waits() -> None:
        machine = ThreadMachine()
        for _ in range(300):
            machine.tell(Input(lambda: None))
            assert machine.wait(None)  # it is there already
            for ahead_ns in (1, 43, 300, 2000):
                assert machine.wait(machine.now_ns() + ahead_ns) is None
        ended.set()

    threading.Thread(target=waits, daemon=True).start()
    assert ended.wait(20)


def test_guards_are_called_while_it_waits_and_what_they_raise_comes_out():
    machine = ThreadMachine(check_every_s=0.01)
    calls: list[int] = []

    def check() -> None:
        calls.append(machine.now_ns())
        if len(calls) == 3:
            raise DeviceError("no")

    machine.guard(check)
    with pytest.raises(DeviceError, match="no"):
        machine.wait(None)
    assert calls[2] >= 30_000_000


def test_engine_time_counts_work_and_not_waiting():
    env = LiveEnvironment(ThreadMachine())

    def work(event) -> None:
        until = time.thread_time_ns() + 20_000_000
        while time.thread_time_ns() < until:
            pass

    env.timeout(40_000_000).callbacks.append(work)
    env.timeout(120_000_000)
    assert run_live(env)
    assert 20_000_000 <= env.pump.longest_turn_ns <= env.pump.engine_ns < 40_000_000


def test_what_was_put_off_is_done_before_each_wait_and_at_the_end():
    machine, log = Scripted((5, None), (9, None)), []
    env = LiveEnvironment(machine)
    env.at_turns_end(lambda: log.append(("later", int(env.now), len(machine.asked))))
    timer(env, 5, log)
    timer(env, 9, log)
    assert run_live(env)
    assert log == [("later", 0, 0), ("timer", 5), ("later", 5, 1), ("timer", 9), ("later", 9, 2)]


def test_what_is_done_after_the_last_submission_of_a_turn_is_not_waited_for():
    env = LiveEnvironment(ThreadMachine())

    def spend(ms: int) -> None:
        until = time.thread_time_ns() + ms * 1_000_000
        while time.thread_time_ns() < until:
            pass

    def submit(event) -> None:
        spend(10)
        under_way(env, [])
        env.pump.handed_over()
        env.pump.under_way.clear()
        spend(20)

    env.timeout(1_000_000).callbacks.append(submit)
    env.at_turns_end(lambda: spend(5))
    env.timeout(60_000_000)
    assert run_live(env)
    assert env.operations == 1
    assert 10_000_000 <= env.submission_ns_per_operation < 18_000_000
    assert env.engine_ns_per_operation >= 35_000_000


def test_a_machine_that_polls_hears_of_everything_too():
    for waiting in ("sleep", "poll"):
        machine = ThreadMachine(waiting=waiting)
        machine.now_ns()
        assert machine.wait(2_000_000) is None
        assert machine.now_ns() >= 2_000_000
        entry = Input(lambda: None)
        threading.Timer(0.01, lambda machine=machine, entry=entry: machine.tell(entry)).start()
        assert machine.wait(None) == [entry]


def test_engine_time_is_for_each_operation():
    machine = VirtualMachine(lambda operation: pytest.fail("nothing is carried out"))
    env = LiveEnvironment(machine)
    assert env.engine_ns_per_operation == 0
    for _ in range(4):
        under_way(env, [])
    env.pump.engine_ns = 1000
    assert env.engine_ns_per_operation == 250


def test_the_interpreter_is_handed_over_more_often_during_a_run_only():
    ours, during = sys.getswitchinterval(), []
    env = LiveEnvironment(ThreadMachine())
    env.timeout(0).callbacks.append(lambda event: during.append(sys.getswitchinterval()))
    try:
        sys.setswitchinterval(0.004)
        assert run_live(env)
        assert during == [pytest.approx(SWITCH_INTERVAL_S)]
        assert sys.getswitchinterval() == pytest.approx(0.004)
    finally:
        sys.setswitchinterval(ours)
