"""When requests arrive: at their times, or once the answer that they wait for has ended.

    open loop     each request at its `arrival_ns`; one without a time waits, as in a closed loop
    closed loop   a session's first turn when a client is free and its time has come,
                  a later one `delay_ns` after the end of the turn that it follows

        turn 0 ----- answer ends --- delay ---> turn 1 ----- answer ends --- delay ---> turn 2
                                     think time

Where requests wait for others all of them are read first, since the next to arrive may stand
anywhere in the trace; otherwise they are streamed. This module refuses to know what serves them.
"""

# pyright: reportPrivateUsage=false
# `Environment.now` is a property in Python; see hicache.kernel.
from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from simpy import Environment

from hicache.errors import InputError
from hicache.kernel import Sleep, Task
from hicache.options import LoadOptions
from hicache.requests import Request
from hicache.waiting import WaitingRequests

NOBODY = -1


class Server(Protocol):
    """Who takes the requests. `on_end` is to be called with each that has ended, however."""

    on_end: Callable[[Request], None] | None

    def enqueue(self, request: Request) -> None:
        """A request arrives now."""
        ...

    def close(self) -> None:
        """No more requests will come."""
        ...


class StreamedArrivals:
    """Every request has a time: nothing is kept."""

    def __init__(self, env: Environment, server: Server) -> None:
        self._env: Any = env  # its times are ints
        self._server = server

    async def run(self, requests: Iterable[Request]) -> None:
        """Let each request arrive at its time, in order."""
        env, server = self._env, self._server
        for request in requests:
            assert request.arrival_ns >= 0, f"{request} has no time, so requests must be read ahead"
            delay = request.arrival_ns - env._now
            if delay > 0:
                await Sleep(env, delay)
            server.enqueue(request)
        server.close()


class LinkedArrivals:
    """Requests that wait for one another, all held."""

    def __init__(self, env: Environment, server: Server, options: LoadOptions) -> None:
        self._env: Any = env  # its times are ints
        self._server = server
        self._options = options
        # By a request's number: itself until its turn has come, the latest request that follows it,
        # and the one before among those that follow the same (`NOBODY`: none).
        self._waiting = WaitingRequests()
        self._latest_follower = array("q")
        self._follower_before = array("q")
        # By its number, too: its round (0: a first turn), and the number of its session's first.
        self._round_of = array("q")
        self._session_of = array("q")
        self._left_in_round: list[int] = []
        self._left_in_session: dict[int, int] = {}
        # Later turns whose time is known and whose round has not begun: (request, not before).
        self._next_round: list[tuple[Request, int]] = []
        self._sessions: deque[Request] = deque()  # first turns that no client has begun
        self._unsent: deque[Request] = deque()  # due, behind `parallel` others
        self._in_flight = 0
        self._to_come = 0

    async def run(self, requests: Iterable[Request]) -> None:
        """Read all requests and let the first ones arrive; the others follow from `on_end`.

        Raises InputError for a barrier that could never open.
        """
        first_turns = self._read(requests)
        if not first_turns:
            self._server.close()
            return
        clients = self._options.clients
        if self._options.barrier and 0 < clients < len(first_turns):
            raise InputError(
                f"load.barrier is set and load.clients is {clients}: a round ends when every "
                f"session has had its turn, so all {len(first_turns):,} sessions must run at once; "
                "leave out load.clients, or the barrier"
            )
        self._server.on_end = self._ended
        self._sessions.extend(first_turns)
        for _ in range(clients or len(first_turns)):
            self._begin_session()

    def _read(self, requests: Iterable[Request]) -> list[Request]:
        closed = self._options.loop == "closed"
        rounds, sessions = self._round_of, self._session_of
        waiting, latest, before = self._waiting, self._latest_follower, self._follower_before
        first_turns: list[Request] = []
        for request in requests:
            number = request.number
            assert number == len(rounds), "requests are numbered from 0, in the order of the trace"
            latest.append(NOBODY)
            if request.after >= 0 and (closed or request.arrival_ns < 0):
                waiting.hold(request)
                before.append(latest[request.after])
                latest[request.after] = number
                rounds.append(rounds[request.after] + 1)
                sessions.append(sessions[request.after])
            else:
                first_turns.append(request)
                waiting.pass_over()
                before.append(NOBODY)
                rounds.append(0)
                sessions.append(number)
            if rounds[number] == len(self._left_in_round):
                self._left_in_round.append(0)
            self._left_in_round[rounds[number]] += 1
            session = sessions[number]
            self._left_in_session[session] = self._left_in_session.get(session, 0) + 1
            self._to_come += 1
        first_turns.sort(key=lambda request: max(0, request.arrival_ns))  # stable
        return first_turns

    def _begin_session(self) -> None:
        if self._sessions:
            first = self._sessions.popleft()
            self._arrive_at(first, first.arrival_ns)

    def _arrive_at(self, request: Request, at_ns: int) -> None:
        if at_ns > self._env._now:
            Task(self._arrive_later(request, at_ns - self._env._now))
        else:
            self._arrive(request)

    async def _arrive_later(self, request: Request, delay_ns: int) -> None:
        await Sleep(self._env, delay_ns)
        self._arrive(request)

    def _arrive(self, request: Request) -> None:
        if self._options.parallel and self._in_flight >= self._options.parallel:
            self._unsent.append(request)
            return
        self._in_flight += 1
        self._to_come -= 1
        request.arrival_ns = self._env._now
        self._server.enqueue(request)
        if not self._to_come:
            self._server.close()

    def _ended(self, request: Request) -> None:
        """A request has its answer, or was given up: whoever waited for it goes on."""
        now, number = self._env._now, request.number
        self._in_flight -= 1
        if self._unsent:
            self._arrive(self._unsent.popleft())
        turn = self._round_of[number]
        self._left_in_round[turn] -= 1
        for follower in self._taken_followers(number):
            at_ns = now + follower.delay_ns
            if self._options.barrier:
                self._next_round.append((follower, at_ns))
            else:
                self._arrive_at(follower, at_ns)
        if self._options.barrier and not self._left_in_round[turn]:
            waiting, self._next_round = self._next_round, []
            for follower, at_ns in waiting:
                self._arrive_at(follower, at_ns)
        session = self._session_of[number]
        self._left_in_session[session] -= 1
        if not self._left_in_session[session]:
            del self._left_in_session[session]
            if self._options.clients:
                self._begin_session()

    def _taken_followers(self, number: int) -> list[Request]:
        """The requests that follow that one, in the order of the trace; no longer kept here."""
        followers: list[Request] = []
        each = self._latest_follower[number]
        while each != NOBODY:
            followers.append(self._waiting.take(each))
            each = self._follower_before[each]
        followers.reverse()
        return followers
