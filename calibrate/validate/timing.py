"""Where the time went: what each kind of operation took on the machine and in the simulation, and
what the device model says of the machine's own operations.

    of the same operations   service measured | service predicted     error of the device model
    of the two runs          service, waits, idle                     what came of it

A step of the GPU is predicted from its shape alone; copies are submitted to the simulated devices
when they were on the machine, while the GPU does what it did there, so that what they lose to one
another and to steps counts. Refuses to explain a
request: only operations are looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, cast

from simpy import Environment
from simpy.events import Event

from calibrate.validate.measured import device_of, with_waits
from hicache.kernel import Pending, Sleep, Task
from hicache.operations import Completion, Copy, Decode, Operation, Prefill
from sim.contention import DECODE, IDLE, PREFILL
from sim.lanes import SimMachine
from sim.timer import Timer

KINDS = ("prefill", "decode", "h2d", "d2h", "s2h", "h2s")
MakeMachine = Callable[[Environment], SimMachine]


class Total(NamedTuple):
    """All operations of a kind. wait: the device was free and had not begun; queue: it was not."""

    operations: int
    service_s: float
    wait_s: float
    queue_s: float


class ModelError(NamedTuple):
    """The device model against the machine, over the same operations of one kind.

    `error_percent` is of the total; the others are of single operations.
    """

    operations: int
    measured_s: float
    predicted_s: float
    median_error_percent: float
    median_absolute_percent: float
    p95_absolute_percent: float

    @property
    def error_percent(self) -> float:
        """Predicted less measured, of all operations together."""
        return 100 * (self.predicted_s - self.measured_s) / max(self.measured_s, 1e-12)


class Predicted(NamedTuple):
    """One operation of the machine's, and what the device model says it takes, in ns."""

    kind: str
    done: Completion
    measured_ns: int
    predicted_ns: int

    @property
    def error_percent(self) -> float:
        """Signed, of what was measured."""
        return 100 * (self.predicted_ns - self.measured_ns) / max(self.measured_ns, 1)

    @property
    def size(self) -> float:
        """What it is plotted over: tokens of a step, requests of a burst, bytes of a copy."""
        operation = self.done.operation
        if type(operation) is Prefill:
            return operation.tokens
        if type(operation) is Decode:
            return operation.batch
        return operation.size_bytes  # pyright: ignore[reportAttributeAccessIssue]


def kind_of(operation: Operation) -> str:
    """Its kind, one of KINDS."""
    if type(operation) is Copy:
        return operation.direction
    return "prefill" if type(operation) is Prefill else "decode"


def totals(completions: Sequence[Completion]) -> dict[str, Total]:
    """What each kind took in a run; kinds that did not occur are left out."""
    sums: dict[str, list[int]] = {}
    for done, wait_ns in with_waits(completions):
        row = sums.setdefault(kind_of(done.operation), [0, 0, 0, 0])
        row[0] += 1
        row[1] += done.finished_ns - done.started_ns
        row[2] += wait_ns
        row[3] += max(0, done.started_ns - done.submitted_ns - wait_ns)
    return {
        kind: Total(sums[kind][0], *(ns / 1e9 for ns in sums[kind][1:]))
        for kind in KINDS
        if kind in sums
    }


def idle_s(completions: Sequence[Completion]) -> float:
    """Seconds between the first submission and the last end in which the GPU had nothing to do."""
    steps = [done for done in completions if device_of(done.operation) == "gpu"]
    if not steps:
        return 0.0
    steps.sort(key=lambda done: done.number)
    idle_ns, free_ns = 0, steps[0].submitted_ns
    for done in steps:
        idle_ns += max(0, done.submitted_ns - free_ns)
        free_ns = max(free_ns, done.finished_ns)
    return idle_ns / 1e9


def predictions(completions: Sequence[Completion], make_machine: MakeMachine) -> list[Predicted]:
    """What the device model says of the machine's own operations, in their order.

    What was set up once (`setup_ns`) does not count as measured.
    """
    steps = make_machine(Environment(0)).steps
    services = _copies_again(completions, make_machine)
    found: list[Predicted] = []
    for done in completions:
        operation = done.operation
        measured_ns = done.finished_ns - done.started_ns - done.setup_ns
        if type(operation) is Prefill:
            predicted_ns = steps.prefill_ns(operation)
        elif type(operation) is Decode:
            burst = steps.burst(operation.batch, operation.context_tokens, operation.max_steps)
            predicted_ns = burst.end_ns(done.steps)
            measured_ns = done.step_ends_ns[-1] - done.started_ns - done.setup_ns
        else:
            predicted_ns = services[done.number]
        found.append(Predicted(kind_of(operation), done, max(1, measured_ns), predicted_ns))
    return found


def model_errors(found: Iterable[Predicted]) -> dict[str, ModelError]:
    """By kind, over what `predictions` gave."""
    by_kind: dict[str, list[Predicted]] = {}
    for each in found:
        by_kind.setdefault(each.kind, []).append(each)
    errors: dict[str, ModelError] = {}
    for kind in KINDS:
        of_kind = by_kind.get(kind)
        if not of_kind:
            continue
        signed = sorted(each.error_percent for each in of_kind)
        absolute = sorted(map(abs, signed))
        errors[kind] = ModelError(
            len(of_kind),
            sum(each.measured_ns for each in of_kind) / 1e9,
            sum(each.predicted_ns for each in of_kind) / 1e9,
            signed[len(signed) // 2],
            absolute[len(absolute) // 2],
            absolute[min(len(absolute) - 1, int(0.95 * len(absolute)))],
        )
    return errors


def _copies_again(completions: Sequence[Completion], make_machine: MakeMachine) -> dict[int, int]:
    """The service of each copy on simulated devices, submitted when it was on the machine, beside
    the machine's own steps; by number, in ns.
    """
    env = Environment(0)
    lanes = make_machine(env).lanes()
    services: dict[int, int] = {}
    copies: list[Completion] = []
    for done in completions:
        if type(done.operation) is Copy:
            copies.append(done)
        else:
            step = DECODE if type(done.operation) is Decode else PREFILL
            for at_ns, what in ((done.started_ns, step), (done.finished_ns, IDLE)):
                Timer(env, at_ns, [lambda _, what=what: lanes._link.beside(what, int(env.now))])

    def ended(number: int, pending: Pending[Completion]) -> None:
        done: Completion = pending.value
        services[number] = done.finished_ns - done.started_ns

    async def submit_all() -> None:
        for copy in sorted(copies, key=lambda done: (done.submitted_ns, done.number)):
            delay_ns = copy.submitted_ns - int(env.now)
            if delay_ns > 0:
                await Sleep(env, delay_ns)
            pending = lanes.submit(copy.operation)
            callbacks = cast("list[Callable[[Event], None]]", pending.callbacks)
            callbacks.append(
                lambda _event, number=copy.number, pending=pending: ended(number, pending)
            )

    Task(submit_all())
    env.run()
    return services
