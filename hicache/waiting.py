"""Requests that are held until others have ended, small.

A request's runs of page keys are most of it: tuples of pairs of ints, 130 bytes a run, and each
turn of a conversation has all runs of the turn before. While it waits they are two numbers each in
one array for all requests:

    packed   ... | prompt runs, answer runs (-1: not named) | first count | first count | ...
                   ^ where request `number` begins

The array is not made smaller as requests are taken. This module refuses to know why they wait.
"""

from __future__ import annotations

from array import array

from hicache.requests import KeyRuns, Request

NOT_NAMED = -1


class WaitingRequests:
    """Requests under numbers 0, 1, ..., some of which are held."""

    def __init__(self) -> None:
        self._requests: list[Request | None] = []
        self._begin_of = array("q")
        self._packed = array("q")

    def pass_over(self) -> None:
        """The request of the next number is not held here."""
        self._requests.append(None)
        self._begin_of.append(NOT_NAMED)

    def hold(self, request: Request) -> None:
        """Hold the request of the next number; it has no runs until it is taken."""
        prompt, answer = request.prompt_runs, request.output_runs
        self._requests.append(request)
        self._begin_of.append(len(self._packed))
        self._packed.append(len(prompt))
        self._packed.append(NOT_NAMED if answer is None else len(answer))
        self._pack(prompt)
        request.prompt_runs = ()
        if answer is not None:
            self._pack(answer)
            request.output_runs = ()

    def take(self, number: int) -> Request:
        """The request of that number, as it was; no longer held."""
        request = self._requests[number]
        assert request is not None, f"request {number} is not held"
        self._requests[number] = None
        begin = self._begin_of[number]
        prompt, answer = self._packed[begin], self._packed[begin + 1]
        request.prompt_runs = self._unpacked(begin + 2, prompt)
        if answer != NOT_NAMED:
            request.output_runs = self._unpacked(begin + 2 + 2 * prompt, answer)
        return request

    def _pack(self, runs: KeyRuns) -> None:
        for first, count in runs:
            self._packed.append(first)
            self._packed.append(count)

    def _unpacked(self, begin: int, runs: int) -> KeyRuns:
        numbers = self._packed[begin : begin + 2 * runs]
        return tuple(zip(numbers[::2], numbers[1::2], strict=True))
