"""The shared device against a naive one that moves on ns by ns, in exact fractions."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from lanes_contract import MIB, Watched, at
from simpy import Environment

from hicache.operations import Copy
from scenario.profile import DiskProfile, Quantity, Surface
from sim.disk import Disk
from sim.shared_device import PERMILLE, SharedDevice


class Ask(NamedTuple):
    """One transfer of the test."""

    submit_ns: int
    work_ns: int
    kind: str = ""
    ready_ns: int = 0
    latency_ns: int = 0


def device_ends(asks: list[Ask], workers: int, gain, mixed: int = PERMILLE) -> list[tuple]:
    env = Environment(0)
    ends: list[tuple] = []
    device: SharedDevice[int] = SharedDevice(
        env, workers, lambda item, start, end: ends.append((item, start, end)), mixed
    )

    def submit(number: int, ask: Ask) -> None:
        device.submit(
            number, number, ask.work_ns, gain, kind=ask.kind, ready_ns=ask.ready_ns,
            latency_ns=ask.latency_ns,
        )  # fmt: skip

    for number, ask in enumerate(asks):
        at(env, ask.submit_ns, lambda number=number, ask=ask: submit(number, ask))
    env.run()
    assert device.in_use == device.waiting == 0
    return ends


def naive_ends(asks: list[Ask], workers: int, gain, mixed: int) -> list[tuple]:
    """The same by looking at every ns: what is left of each, in fractions."""
    ends: list[tuple] = []
    waiting: list[int] = []
    started: dict[int, int] = {}
    left: dict[int, Fraction] = {}
    now = 0
    while len(ends) < len(asks):
        waiting += [n for n, ask in enumerate(asks) if ask.submit_ns == now]
        for number in [n for n in sorted(left) if left[n] <= 0]:
            ends.append((number, started.pop(number), now))
            del left[number]
        while waiting and len(started) < workers:
            number = waiting.pop(0)
            started[number] = max(now, asks[number].ready_ns)
        for number, start in started.items():
            if number not in left and start + asks[number].latency_ns <= now:
                left[number] = Fraction(asks[number].work_ns)
        if left:
            total = Fraction(gain(len(left)), PERMILLE)
            if len({asks[number].kind for number in left}) > 1:
                total *= Fraction(mixed, PERMILLE)
            for number in left:
                left[number] -= total / len(left)
        now += 1
    return ends


asks = st.lists(
    st.builds(
        Ask,
        st.integers(0, 30),
        st.integers(1, 25),
        st.sampled_from(["read", "write"]),
        st.integers(0, 40),
        st.integers(0, 5),
    ),
    min_size=1,
    max_size=8,
).map(lambda each: sorted(each, key=lambda ask: ask.submit_ns))


@given(
    asks=asks,
    workers=st.integers(1, 5),
    gains=st.lists(st.integers(500, 3000), min_size=5, max_size=5),
    mixed=st.integers(100, 1000),
)
@settings(max_examples=120, deadline=None)
def test_it_agrees_with_the_naive_device_to_the_ns(asks, workers, gains, mixed):
    def gain(active: int) -> int:
        return gains[active - 1] if active > 1 else PERMILLE

    ends = device_ends(asks, workers, gain, mixed)
    assert [end for *_, end in ends] == sorted(end for *_, end in ends)
    assert sorted(ends) == sorted(naive_ends(asks, workers, gain, mixed))


@given(works=st.lists(st.integers(1, 10**9), min_size=1, max_size=20), workers=st.integers(1, 20))
@settings(max_examples=100, deadline=None)
def test_sharing_neither_makes_nor_loses_work(works, workers):
    ends = device_ends([Ask(0, work) for work in works], workers, lambda n: PERMILLE)
    # Each of the roundings up to a whole ns loses less than one.
    assert sum(works) <= ends[-1][2] < sum(works) + len(works)
    if workers >= len(works):
        assert [works[item] for item, _, _ in ends] == sorted(works)
    if workers == 1:
        assert [item for item, _, _ in ends] == list(range(len(works)))


def test_all_start_at_once_and_smaller_work_ends_first():
    assert device_ends([Ask(0, 30), Ask(0, 10), Ask(0, 20)], 3, lambda n: PERMILLE) == [
        (1, 0, 30),
        (2, 0, 50),
        (0, 0, 60),
    ]


def one_gib_per_s(workers: int) -> DiskProfile:
    def quantity(value: int) -> Quantity:
        return Quantity(provenance="estimate", how="a test", value=value)

    rate = Surface(provenance="estimate", how="a test", points=((MIB, 1, 1 << 30),))
    return DiskProfile(
        read_bytes_per_s=rate,
        write_bytes_per_s=rate,
        read_latency_ns=quantity(0),
        write_latency_ns=quantity(0),
        workers=quantity(workers),
        mixed_permille=quantity(1000),
    )


def disk_ends(workers: int, directions: tuple) -> list[int]:
    """When copies of 1 GiB end on a disk of 1 GiB/s, each half a second after the one before."""
    from hicache.kernel import Pending

    env = Environment(0)
    disk = Disk(env, one_gib_per_s(workers))
    watched = []
    for number, direction in enumerate(directions):
        pending = Pending(env, number, number * 500_000_000)
        watched.append(Watched(env, pending))
        operation = Copy(direction, 1, 1 << 30, 1)
        at(
            env,
            pending.submitted_ns,
            lambda pending=pending, operation=operation: disk.submit(pending, operation, 0),
        )
    env.run()
    return [each.done.finished_ns for each in watched]


def test_two_reads_of_a_gib_the_second_half_a_second_later_end_at_one_and_a_half_and_two():
    assert disk_ends(2, ("s2h", "s2h")) == [1_500_000_000, 2_000_000_000]


def test_reads_and_writes_share_the_device_too():
    assert disk_ends(2, ("s2h", "h2s")) == [1_500_000_000, 2_000_000_000]


def test_with_one_worker_the_second_waits():
    assert disk_ends(1, ("s2h", "s2h")) == [1_000_000_000, 2_000_000_000]


def test_many_workers_share_exactly():
    ends = device_ends([Ask(0, 1000) for _ in range(64)], 64, lambda n: PERMILLE)
    assert {end for _, _, end in ends} == {64_000}
