"""Arrival times other than the trace's: all at once, or at a rate."""

from __future__ import annotations

from statistics import mean, stdev

import pytest

from hicache.errors import InputError
from hicache.requests import Request
from traces.load import arriving


def requests(count: int, *, linked: int = 0) -> list[Request]:
    """`count` requests a second apart; every `linked`-th but the first follows the one before."""
    return [
        Request(
            number, number * 10**9, 1, 1, ((number, 1),), 1,
            after=number - 1 if linked and number % linked else -1,
        )
        for number in range(count)
    ]  # fmt: skip


def times(*arguments, **options) -> list[int]:
    return [each.arrival_ns for each in arriving(*arguments, **options)]


def gaps_s(times_ns: list[int]) -> list[float]:
    return [(b - a) / 1e9 for a, b in zip([0, *times_ns], times_ns, strict=False)]


def test_the_traces_times_stay():
    assert times(iter(requests(3)), "trace") == [0, 10**9, 2 * 10**9]


def test_without_time_and_predecessor_a_request_is_there_from_the_start():
    alone = Request(0, -1, 1, 1, ((0, 1),), 1)
    assert times(iter([alone]), "trace") == [0]


def test_at_once_is_at_0():
    assert times(iter(requests(3)), "at_once") == [0, 0, 0]


@pytest.mark.parametrize(("arrivals", "spread"), [("poisson", 1.0), ("uniform", 3**-0.5)])
def test_gaps_have_the_mean_and_the_spread_of_their_distribution(arrivals, spread):
    gaps = gaps_s(times(iter(requests(20_000)), arrivals, rate_per_s=4, seed=3))
    assert mean(gaps) == pytest.approx(0.25, rel=0.03)
    assert stdev(gaps) == pytest.approx(0.25 * spread, rel=0.03)
    if arrivals == "uniform":
        assert max(gaps) <= 0.5


@pytest.mark.parametrize("arrivals", ["poisson", "uniform"])
def test_a_rate_at_which_the_trace_would_last_for_ages_is_refused(arrivals):
    """Results hold nanoseconds in 64 bits; a request number says how far it came."""
    with pytest.raises(InputError, match=r"load\.rate is 1e-06 a second: request \d+ .* years"):
        times(iter(requests(2000)), arrivals, rate_per_s=1e-6)
    assert times(iter(requests(20)), arrivals, rate_per_s=1e-6)


def test_the_seed_decides():
    def drawn(seed: int) -> list[int]:
        return times(iter(requests(50)), "poisson", rate_per_s=1, seed=seed)

    assert drawn(1) == drawn(1) != drawn(2)


def test_in_a_closed_loop_only_first_turns_are_drawn():
    mixed = list(
        arriving(iter(requests(6, linked=3)), "poisson", rate_per_s=1, loop="closed", seed=1)
    )
    alone = times(iter(requests(2)), "poisson", rate_per_s=1, seed=1)
    assert [each.arrival_ns for each in mixed if each.after < 0] == alone
    assert [each.arrival_ns for each in mixed if each.after >= 0] == [
        each.arrival_ns for each in requests(6, linked=3) if each.after >= 0
    ]


def test_in_an_open_loop_every_request_with_a_time_is_drawn():
    drawn = times(iter(requests(4, linked=2)), "poisson", rate_per_s=1, seed=1)
    assert drawn == times(iter(requests(4)), "poisson", rate_per_s=1, seed=1)


def in_sessions(*rows: tuple[str, int, int]) -> list[Request]:
    """Requests of (session, arrival in ns, after)."""
    return [
        Request(number, at_ns, 1, 1, ((number, 1),), 1, session=session, after=after)
        for number, (session, at_ns, after) in enumerate(rows)
    ]


def test_a_closed_loop_chains_sessions_whose_trace_does_not_say_who_waits_for_whom():
    notes: list[str] = []
    rows = in_sessions(("a", 0, -1), ("b", 5, -1), ("a", 30, -1), ("", 40, -1), ("a", 31, -1))
    served = list(arriving(iter(rows), "trace", loop="closed", notes=notes))
    assert [(each.after, each.delay_ns) for each in served] == [
        (-1, 0), (-1, 0), (0, 30), (-1, 0), (2, 1),
    ]  # fmt: skip
    assert [note.split(" ", 1)[0] for note in notes] == ["2"]
    open_loop = list(arriving(iter(in_sessions(("a", 0, -1), ("a", 9, -1))), "trace"))
    assert [each.after for each in open_loop] == [-1, -1]


def test_what_the_trace_says_of_waiting_is_kept():
    notes: list[str] = []
    rows = in_sessions(("a", 0, -1), ("a", 1, -1), ("a", 2, 0))
    list(arriving(iter(rows), "trace", loop="closed", notes=notes))
    assert [each.after for each in rows] == [-1, 0, 0]


def test_requests_without_a_time_are_noted():
    notes: list[str] = []
    list(arriving(iter(in_sessions(("", -1, -1), ("", -1, -1))), "trace", notes=notes))
    assert len(notes) == 1
    assert notes[0].startswith("2 requests have no time")


def test_a_closed_loop_over_a_trace_without_sessions_is_said_to_change_nothing():
    notes: list[str] = []
    list(arriving(iter(requests(3)), "trace", loop="closed", notes=notes))
    assert len(notes) == 1
    assert "no request waits for another" in notes[0]
    notes.clear()
    list(arriving(iter(requests(3, linked=3)), "trace", loop="closed", notes=notes))
    assert notes == []
