"""The link against a naive one that moves on ns by ns; queues, duplex loss."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import msgspec
import pytest
from by_hand import H200_BY_HAND
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lanes_contract import MIB, Watched, at
from simpy import Environment

from hicache.kernel import Pending
from hicache.operations import Copy
from scenario.profile import BackendCopies, Backends, Curve, PcieProfile, Quantity, load_profile
from sim.host import Host
from sim.pcie import Link
from sim.ranges import RangeWatch

PROFILE = load_profile(H200_BY_HAND)


class Ask(NamedTuple):
    direction: str
    submit_ns: int
    ready_ns: int
    work_ns: int


def one_byte_a_ns(duplex_bytes_per_s: int):
    """A link of a ns for each byte that goes at `duplex_bytes_per_s` while both are busy."""
    curve = Curve(provenance="estimate", how="a test", points=((0, 0), (1000, 1000)))
    duplex = Quantity(provenance="estimate", how="a test", value=duplex_bytes_per_s)
    return msgspec.structs.replace(
        PROFILE.pcie, h2d=curve, d2h=curve, duplex_bytes_per_s=duplex, gather_scatter=None
    )


def in_turn(per_byte_ns: int = 1):
    """One back-end of a ns for each byte that both directions share."""
    curve = Curve(provenance="estimate", how="a test", points=((0, 0), (1000, 1000 * per_byte_ns)))
    duplex = Quantity(provenance="estimate", how="a test", value=10**9)
    direct = BackendCopies(
        h2d=curve, d2h=curve, h2d_scattered=curve, d2h_scattered=curve, page_bytes=1,
        duplex_bytes_per_s=duplex,
    )  # fmt: skip
    once = Quantity(provenance="estimate", how="a test", value=1)
    return msgspec.structs.replace(PROFILE.pcie, backends=Backends(direct=direct, at_once=once))


def link_ends(
    asks: list[Ask], duplex_bytes_per_s: int, pcie: PcieProfile | None = None
) -> list[tuple[int, int]]:
    env = Environment(0)
    host = Host(PROFILE.host, RangeWatch())
    if pcie is None:
        link = Link(env, one_byte_a_ns(duplex_bytes_per_s), host)
    else:
        link = Link(env, pcie, host, "backend", "direct")
    watched: list[Watched] = []

    def submit(number: int, ask: Ask) -> None:
        pending: Pending = Pending(env, number, ask.submit_ns)
        watched.append(Watched(env, pending))
        link.submit(pending, Copy(ask.direction, 1, ask.work_ns, 1), ask.ready_ns)  # type: ignore[arg-type]

    for number, ask in enumerate(asks):
        at(env, ask.submit_ns, lambda number=number, ask=ask: submit(number, ask))
    env.run()
    return [(each.done.started_ns, each.done.finished_ns) for each in watched]


def naive_ends(asks: list[Ask], permille: int) -> list[tuple[int, int]]:
    queues = {way: [n for n, a in enumerate(asks) if a.direction == way] for way in ("h2d", "d2h")}
    ends: dict[int, tuple[int, int]] = {}
    started: dict[int, int] = {}
    left = {number: ask.work_ns * 1000 for number, ask in enumerate(asks)}
    now = 0
    while len(ends) < len(asks):
        busy: list[int] = []
        for queue in queues.values():
            while queue and queue[0] in started and left[queue[0]] <= 0:
                number = queue.pop(0)
                ends[number] = (started[number], now)
            if queue and asks[queue[0]].submit_ns <= now and asks[queue[0]].ready_ns <= now:
                started.setdefault(queue[0], now)
                busy.append(queue[0])
        for number in busy:
            left[number] -= permille if len(busy) == 2 else 1000
        now += 1
    return [ends[number] for number in range(len(asks))]


asks = st.lists(
    st.builds(
        Ask,
        st.sampled_from(["h2d", "d2h"]),
        st.integers(0, 40),
        st.integers(0, 60),
        st.integers(1, 30),
    ),
    min_size=1,
    max_size=10,
).map(lambda each: sorted(each, key=lambda ask: ask.submit_ns))


# The example: one is submitted in the very ns in which the other direction's ends.
@given(asks=asks, permille=st.integers(100, 1000))
@example(
    [Ask("h2d", 0, 0, 20), Ask("d2h", 0, 0, 4), Ask("d2h", 0, 0, 16), Ask("h2d", 39, 0, 1)], 527
)
@settings(max_examples=120, deadline=None)
def test_it_agrees_with_the_naive_link_to_the_ns(asks, permille):
    assert link_ends(asks, permille * 10**6) == naive_ends(asks, permille)


@given(asks=asks)
@settings(max_examples=50, deadline=None)
def test_each_direction_is_first_come_first_served_and_one_at_a_time(asks):
    ends = link_ends(asks, 500 * 10**6)
    for way in ("h2d", "d2h"):
        mine = [end for end, ask in zip(ends, asks, strict=True) if ask.direction == way]
        assert all(one[1] <= other[0] for one, other in pairwise(mine))


def test_a_transfer_slows_down_while_the_other_direction_is_busy_and_no_longer():
    # 100 ns alone, then both at half speed until the second is done (40 of its ns, 80 by the
    # clock).
    asks = [Ask("h2d", 0, 0, 400), Ask("d2h", 100, 0, 40)]
    assert link_ends(asks, 500 * 10**6) == [(0, 440), (100, 180)]
    assert link_ends(asks, 10**9) == [(0, 400), (100, 140)]


def test_a_duplex_rate_above_the_link_s_own_changes_nothing():
    assert link_ends([Ask("h2d", 0, 0, 400), Ask("d2h", 0, 0, 400)], 9 * 10**9) == [(0, 400)] * 2


@pytest.mark.parametrize("mode", ["staged", "kernel", "dma"])
@pytest.mark.parametrize("direction", ["h2d", "d2h"])
def test_the_h200_takes_what_was_measured(mode, direction):
    env = Environment(0)
    link = Link(env, PROFILE.pcie, Host(PROFILE.host, RangeWatch()), mode)
    pcie = PROFILE.pcie
    curve = pcie.h2d if direction == "h2d" else pcie.d2h
    if mode == "kernel":
        curve = pcie.zero_copy_h2d if direction == "h2d" else pcie.zero_copy_d2h
    assert curve is not None
    size_bytes, ns = curve.points[-1]
    watched = Watched(env, Pending(env, 0, 0))
    link.submit(watched.pending, Copy(direction, 1, size_bytes, 1), 0)
    env.run()
    if mode == "staged":
        # On top of the copy, the kernel: 3 to 6 % of it.
        assert 1.03 * ns < watched.done.finished_ns < 1.06 * ns
    else:
        assert watched.done.finished_ns == ns


def test_dma_pays_for_each_extent():
    env = Environment(0)
    link = Link(env, PROFILE.pcie, Host(PROFILE.host, RangeWatch()), "dma")
    watched = Watched(env, Pending(env, 0, 0))
    link.submit(watched.pending, Copy("h2d", 4, 4 * MIB, 4), 0)
    env.run()
    assert watched.done.finished_ns == 4 * dict(PROFILE.pcie.h2d.points)[MIB]


@pytest.mark.parametrize(
    ("mode", "size_bytes", "extents", "said"),
    [
        ("staged", 1 << 30, 1, 0),
        ("staged", (1 << 30) + 1, 1, (1 << 30) + 1),
        ("staged", 1 << 31, 7, 1 << 31),
        ("kernel", 1 << 30, 1, 1 << 30),
        ("dma", 4 << 30, 4, 0),
        ("dma", 6 << 30, 4, 3 << 29),
        ("dma", 2 << 30, 1, 2 << 30),
    ],
)
@pytest.mark.parametrize("direction", ["h2d", "d2h"])
def test_a_copy_larger_than_any_sample_is_counted(mode, direction, size_bytes, extents, said):
    """Once for each such copy, whether its time was known already or not."""
    env, watch = Environment(0), RangeWatch()
    link = Link(env, PROFILE.pcie, Host(PROFILE.host, watch), mode, watch=watch)
    for number in range(3):
        operation = Copy(direction, 1, size_bytes, extents)
        link.submit(Pending(env, number, 0), operation, 0)
        link.submit(Pending(env, 3 + number, 0), Copy(direction, 1, MIB, 1), 0)
    if not said:
        assert watch.outside_range() == ()
        return
    (outside,) = watch.outside_range()
    assert (outside.what, outside.times) == (f"bytes of a copy ({direction})", 3)
    assert outside.farthest == said
    curve = PROFILE.pcie.h2d if mode != "kernel" else PROFILE.pcie.zero_copy_h2d
    assert curve is not None
    assert outside.measured_to == curve.points[-1][0] < outside.farthest


@given(asks=asks)
@settings(max_examples=80, deadline=None)
def test_one_back_end_carries_one_copy_at_a_time_and_never_rests(asks):
    spans = sorted(link_ends(asks, 0, in_turn()))
    assert all(one[1] <= other[0] for one, other in pairwise(spans))
    ends = link_ends(asks, 0, in_turn())
    for ask, (started_ns, finished_ns) in zip(asks, ends, strict=True):
        assert finished_ns - started_ns == ask.work_ns
        assert started_ns >= max(ask.ready_ns, ask.submit_ns)
        if started_ns > max(ask.ready_ns, ask.submit_ns):  # somebody's end let it begin
            assert started_ns in [end for _, end in ends] + [other.ready_ns for other in asks]


def test_of_two_that_wait_the_other_direction_goes_first():
    asks = [Ask("h2d", 0, 0, 100), Ask("h2d", 0, 0, 100), Ask("d2h", 10, 10, 50),
            Ask("d2h", 10, 10, 50)]  # fmt: skip
    assert link_ends(asks, 0, in_turn()) == [(0, 100), (150, 250), (100, 150), (250, 300)]


def test_one_back_end_does_not_wait_for_what_is_not_ready():
    asks = [Ask("h2d", 0, 500, 100), Ask("d2h", 5, 5, 50)]
    assert link_ends(asks, 0, in_turn()) == [(500, 600), (5, 55)]
