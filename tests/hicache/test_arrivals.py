"""When requests arrive: open and closed loops, clients, limits, barriers; a hand-made server."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simpy import Environment

from hicache.arrivals import LinkedArrivals, StreamedArrivals
from hicache.errors import InputError
from hicache.kernel import Sleep, Task
from hicache.options import LoadOptions
from hicache.requests import Request

SERVICE_NS = 100


class SlowServer:
    """Every request takes `SERVICE_NS`, any number at once. `log` holds (time, event, number)."""

    def __init__(self, env: Environment) -> None:
        self.env = env
        self.on_end = None
        self.log: list[tuple[int, str, int]] = []
        self.closed_at = -1
        self.under_way = 0
        self.most = 0

    def enqueue(self, request: Request) -> None:
        assert self.closed_at < 0, "closed before its last request"
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        self.log.append((int(self.env.now), "arrives", request.number))
        Task(self._serve(request))

    def close(self) -> None:
        assert self.closed_at < 0
        self.closed_at = int(self.env.now)

    async def _serve(self, request: Request) -> None:
        await Sleep(self.env, SERVICE_NS)
        self.under_way -= 1
        self.log.append((int(self.env.now), "ends", request.number))
        if self.on_end is not None:
            self.on_end(request)

    def arrivals(self) -> dict[int, int]:
        return {number: at for at, event, number in self.log if event == "arrives"}

    def ends(self) -> dict[int, int]:
        return {number: at for at, event, number in self.log if event == "ends"}


def request(number: int, at_ns: int = -1, after: int = -1, delay_ns: int = 0) -> Request:
    return Request(number, at_ns, 1, 1, ((number, 1),), 1, after=after, delay_ns=delay_ns)


def served(requests: list[Request], **options) -> SlowServer:
    env = Environment(0)
    server = SlowServer(env)
    Task(LinkedArrivals(env, server, LoadOptions(**options)).run(requests))
    env.run()
    assert len(server.ends()) == len(requests)
    assert server.closed_at == max(server.arrivals().values(), default=0)
    return server


def test_streamed_requests_arrive_at_their_times():
    env = Environment(0)
    server = SlowServer(env)
    Task(StreamedArrivals(env, server).run([request(0, 0), request(1, 5), request(2, 5)]))
    env.run()
    assert server.arrivals() == {0: 0, 1: 5, 2: 5}
    assert server.closed_at == 5


def test_a_request_without_a_time_waits_for_its_predecessor_also_in_an_open_loop():
    # The row that waits stands behind one that comes much later: it must not wait for that.
    server = served([request(0, 0), request(1, 10_000), request(2, -1, after=0, delay_ns=7)])
    assert server.arrivals() == {0: 0, 1: 10_000, 2: SERVICE_NS + 7}


def test_in_an_open_loop_a_time_counts_more_than_a_predecessor():
    assert served([request(0, 0), request(1, 3, after=0)]).arrivals() == {0: 0, 1: 3}


def test_in_a_closed_loop_a_predecessor_counts_more_than_a_time():
    requests = [request(0, 0), request(1, 3, after=0), request(2, 4, after=1, delay_ns=50)]
    server = served(requests, loop="closed")
    assert server.arrivals() == {0: 0, 1: 100, 2: 250}
    assert [each.arrival_ns for each in requests] == [0, 100, 250]


def test_clients_begin_the_next_session_when_one_has_ended():
    requests = [request(0, 0), request(1, 0), request(2, 0), request(3, 0, after=0)]
    server = served(requests, loop="closed", clients=2)
    # Client 1 is free at 100 and takes session 2; session 0 goes on with 3.
    assert server.arrivals() == {0: 0, 1: 0, 2: 100, 3: 100}
    assert served(requests, loop="closed", clients=1).arrivals() == {0: 0, 3: 100, 1: 200, 2: 300}


def test_a_session_with_side_branches_keeps_its_client_until_all_have_ended():
    requests = [
        request(0, 0),
        request(1, after=0),
        request(2, after=0, delay_ns=500),
        request(3, 0),
    ]
    assert served(requests, loop="closed", clients=1).arrivals() == {0: 0, 1: 100, 2: 600, 3: 700}


def test_no_more_than_parallel_requests_are_under_way():
    requests = [request(number, 0) for number in range(5)]
    server = served(requests, loop="closed", parallel=2)
    assert server.most == 2
    assert sorted(server.arrivals().values()) == [0, 0, 100, 100, 200]


def test_behind_a_barrier_a_turn_waits_for_all_turns_before_it():
    requests = [
        request(0, 0), request(1, 1000), request(2, after=0), request(3, after=1, delay_ns=20),
        request(4, after=2),
    ]  # fmt: skip
    assert served(requests, loop="closed").arrivals() == {0: 0, 2: 100, 4: 200, 1: 1000, 3: 1120}
    held = served(requests, loop="closed", barrier=True)
    assert held.arrivals() == {0: 0, 1: 1100 - 100, 2: 1100, 3: 1120, 4: 1220}


def test_a_barrier_needs_all_sessions_at_once():
    env = Environment(0)
    arrivals = LinkedArrivals(env, SlowServer(env), LoadOptions("closed", clients=1, barrier=True))
    with pytest.raises(InputError, match=r"load\.barrier .* load\.clients is 1: .* all 2 sessions"):
        Task(arrivals.run([request(0, 0), request(1, 0)]))


@pytest.mark.parametrize("limit", [{"clients": 1}, {"parallel": 1}, {"barrier": True}])
def test_limits_are_those_of_a_closed_loop(limit):
    with pytest.raises(InputError, match="closed loop"):
        LoadOptions(**limit)


@given(st.data())
def test_any_sessions_are_all_served_in_order(data):
    requests: list[Request] = []
    for number in range(data.draw(st.integers(0, 25))):
        after = data.draw(st.integers(-1, number - 1))
        timed = after < 0 or data.draw(st.booleans())
        at_ns = data.draw(st.integers(0, 400)) if timed else -1
        requests.append(request(number, at_ns, after, data.draw(st.integers(0, 300))))
    before = [(each.number, each.arrival_ns, each.after, each.delay_ns) for each in requests]
    clients, parallel = data.draw(st.integers(0, 4)), data.draw(st.integers(0, 4))
    server = served(requests, loop="closed", clients=clients, parallel=parallel)
    arrivals, ends = server.arrivals(), server.ends()
    for number, at_ns, after, delay_ns in before:
        if after >= 0:
            assert arrivals[number] >= ends[after] + delay_ns
            if not parallel:
                assert arrivals[number] == ends[after] + delay_ns
        else:
            assert arrivals[number] >= at_ns
    if parallel:
        assert server.most <= parallel
