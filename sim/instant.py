"""Lanes on which nothing takes time: operations are over when submitted. For untimed runs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from simpy import Environment

from hicache.kernel import Pending, completed
from hicache.operations import Completion, Decode, Operation


class InstantLanes:
    """`hicache.ports.Lanes` without devices. `numbers` is shared by all lanes of an environment."""

    def __init__(self, env: Environment, numbers: Iterator[int] | None = None) -> None:
        self._env = env
        self._numbers: Iterator[int] = numbers if numbers is not None else count()

    def submit(self, operation: Operation) -> Pending[Completion]:
        """Carry out `operation` at once; awaiting the answer does not suspend."""
        now, number = int(self._env.now), next(self._numbers)
        steps = operation.max_steps if isinstance(operation, Decode) else 0
        done = Completion(number, operation, now, now, now, now, 0, steps, (now,) * steps)
        return completed(self._env, number, done)

    def end_burst(self, pending: Pending[Completion]) -> None:
        """Nothing: every burst is over."""
