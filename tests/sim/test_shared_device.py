"""The shared device against a naive one that moves on ns by ns, in exact fractions."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import msgspec
from by_hand import H200_BY_HAND
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes_contract import MIB, Watched, at
from simpy import Environment

from hicache.kernel import Pending
from hicache.operations import Copy
from scenario.profile import DiskProfile, Quantity, Surface, load_profile
from sim.disk import Disk
from sim.ranges import RangeWatch
from sim.shared_device import PERMILLE, SharedDevice


class Ask(NamedTuple):
    """One transfer of the test."""

    submit_ns: int
    work_ns: int
    kind: str = ""
    ready_ns: int = 0
    latency_ns: int = 0


def device_ends(
    asks: list[Ask], workers: int, gain, mixed: int = PERMILLE, weights=None, *, place: int = 0
) -> list[tuple]:
    env = Environment(0)
    ends: list[tuple] = []

    def told(item: int, start_ns: int, end_ns: int) -> None:
        assert end_ns <= env.now <= end_ns + (place > 0)
        ends.append((item, start_ns, end_ns))

    device: SharedDevice[int] = SharedDevice(env, workers, told, mixed, weights)

    def submit(number: int, ask: Ask) -> None:
        device.submit(
            number, number, ask.work_ns, gain, kind=ask.kind, ready_ns=ask.ready_ns,
            latency_ns=ask.latency_ns, place=place and place + number,
        )  # fmt: skip

    for number, ask in enumerate(asks):
        at(env, ask.submit_ns, lambda number=number, ask=ask: submit(number, ask))
    env.run()
    assert device.in_use == device.waiting == 0
    return ends


def naive_ends(asks: list[Ask], workers: int, gain, mixed: int, weights=None) -> list[tuple]:
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
            parts = {number: (weights or {}).get(asks[number].kind, 1) for number in left}
            for number in left:
                left[number] -= total * parts[number] / sum(parts.values())
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
    place=st.sampled_from([0, 3]),
)
@settings(max_examples=240, deadline=None)
def test_it_agrees_with_the_naive_device_to_the_ns(asks, workers, gains, mixed, place):
    def gain(active: int) -> int:
        return gains[active - 1] if active > 1 else PERMILLE

    ends = device_ends(asks, workers, gain, mixed, place=place)
    assert [end for *_, end in ends] == sorted(end for *_, end in ends)
    assert sorted(ends) == sorted(naive_ends(asks, workers, gain, mixed))


@given(
    works=st.lists(st.integers(1, 9), min_size=2, max_size=6),
    waits_ns=st.lists(st.integers(0, 12), min_size=6, max_size=6),
    place=st.sampled_from([0, 3]),
)
@settings(max_examples=120, deadline=None)
def test_whoever_is_told_of_an_end_may_submit_at_once(works, waits_ns, place):
    """One after the other, as `Disk` does where a direction carries one copy at a time."""
    env = Environment(0)
    queue: list[int] = []
    ends: list[tuple[int, int, int]] = []
    busy = False

    def begin(number: int, place: int) -> None:
        device.submit(number, number, works[number], place=place and place + number)

    def told(number: int, start_ns: int, end_ns: int) -> None:
        nonlocal busy
        ends.append((number, start_ns, end_ns))
        busy = bool(queue)
        if queue:
            begin(queue.pop(0), 0)  # others may wait for its end

    def arrives(number: int) -> None:
        nonlocal busy
        if busy:
            queue.append(number)
            device.tell_at_once()
        else:
            busy = True
            begin(number, place)

    device: SharedDevice[int] = SharedDevice(env, 4, told)
    expected: list[tuple[int, int, int]] = []
    arrival_ns = free_ns = 0
    for number, work_ns in enumerate(works):
        arrival_ns += waits_ns[number]
        at(env, arrival_ns, lambda number=number: arrives(number))
        start_ns = max(arrival_ns, free_ns)
        free_ns = start_ns + work_ns
        expected.append((number, start_ns, free_ns))
    env.run()
    assert ends == expected
    assert device.in_use == device.waiting == 0


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


def outside(profile: DiskProfile, workers: int, *copies: Copy) -> list[tuple[str, int, int, int]]:
    """What a disk says of copies that all come at once."""
    env, watch = Environment(0), RangeWatch()
    disk = Disk(env, profile, workers, watch)
    for number, operation in enumerate(copies):
        disk.submit(Pending(env, number, 0), operation, 0)
    env.run()
    return [tuple(each) for each in watch.outside_range()]


def test_a_block_or_a_crowd_that_was_not_sampled_is_counted():
    h200 = load_profile(H200_BY_HAND).disk
    largest = {"s2h": 67_108_864, "h2s": 4_194_304}
    for direction, most in largest.items():
        sampled = Copy(direction, 1, most, 1)
        pieces = Copy(direction, 8, 8 * most, 8)
        beyond = Copy(direction, 1, most + 1, 1)
        assert outside(h200, 16, *[sampled] * 8, *[pieces] * 8) == []
        what = f"bytes of a disk block ({direction})"
        assert outside(h200, 16, sampled, beyond, beyond) == [(what, 2, most + 1, most)]
        what = f"operations at once on the disk ({direction})"
        assert outside(h200, 18, *[sampled] * 18) == [(what, 2, 18, 16)]


def test_a_single_sample_is_a_rate_and_has_no_end():
    assert outside(one_gib_per_s(3), 3, *[Copy("s2h", 1, 1 << 33, 1)] * 3) == []


def test_two_reads_of_a_gib_the_second_half_a_second_later_end_at_one_and_a_half_and_two():
    assert disk_ends(2, ("s2h", "s2h")) == [1_500_000_000, 2_000_000_000]


def test_reads_and_writes_share_the_device_too():
    assert disk_ends(2, ("s2h", "h2s")) == [1_500_000_000, 2_000_000_000]


def test_with_one_worker_the_second_waits():
    assert disk_ends(1, ("s2h", "s2h")) == [1_000_000_000, 2_000_000_000]


def test_many_workers_share_exactly():
    ends = device_ends([Ask(0, 1000) for _ in range(64)], 64, lambda n: PERMILLE)
    assert {end for _, _, end in ends} == {64_000}


@given(
    asks=st.lists(
        st.builds(
            Ask, st.integers(0, 40), st.integers(1, 60), st.sampled_from(["s2h", "h2s"]),
            st.just(0), st.integers(0, 5),
        ),
        min_size=1, max_size=7,
    ).map(lambda each: sorted(each, key=lambda ask: ask.submit_ns)),
    workers=st.integers(1, 4),
    mixed=st.integers(300, 1000),
    share=st.integers(1, 999),
)  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_kinds_with_weights_share_by_weight_and_agree_with_the_naive_device(
    asks, workers, mixed, share
):
    weights = {"s2h": share, "h2s": PERMILLE - share}
    found = device_ends(asks, workers, lambda n: PERMILLE, mixed, weights)
    expected = naive_ends(asks, workers, lambda n: PERMILLE, mixed, weights)
    # The naive one sees ends in whole ns only.
    assert sorted(each[0] for each in found) == sorted(each[0] for each in expected)
    for (_, started, ended), (_, start, end) in zip(sorted(found), sorted(expected), strict=True):
        assert abs(started - start) <= len(asks)
        assert abs(ended - end) <= len(asks)


def test_a_read_beside_a_write_gets_its_share():
    asks = [Ask(0, 1000, "s2h"), Ask(0, 1000, "h2s")]
    weights = {"s2h": 600, "h2s": 400}
    ends = device_ends(asks, 2, lambda n: PERMILLE, 900, weights)
    # 1000 / (0.9 * 0.6); then what is left of the write, 1000 - 0.9 * 0.4 of that, alone.
    assert ends == [(0, 0, 1852), (1, 0, 2186)]


def test_slots_are_new_once():
    env = Environment(0)
    profile = msgspec.structs.replace(
        one_gib_per_s(2),
        first_write_permille=Quantity(provenance="estimate", how="a test", value=500),
    )
    disk = Disk(env, profile)
    watched: list[Watched] = []

    def write(first: int, count: int, pages: str = "named") -> None:
        pending: Pending = Pending(env, len(watched), int(env.now))
        watched.append(Watched(env, pending))
        runs = ((first, count),)
        size = count * MIB
        copy = (
            Copy("h2s", count, size, 1, runs, runs)
            if pages == "named"
            else Copy("h2s", count, size, 1)
        )
        disk.submit(pending, copy, 0)

    for number, each in enumerate([(0, 8), (0, 8), (4, 8), (0, 8, "counted")]):
        at(env, number * 10**9, lambda each=each: write(*each))
    env.run()
    took = [each.done.finished_ns - each.done.started_ns for each in watched]
    again = took[1]
    # All new, none, half of them, and pages that are only counted.
    assert [round(each / again, 3) for each in took] == [2.0, 1.0, 1.5, 1.0]
