"""The one way in which a simulated device says that an operation is over: once it is."""

# pyright: reportPrivateUsage=false
# `Environment.now` is a property in Python; see hicache.kernel.
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hicache.kernel import Pending, post
from hicache.operations import Completion, Operation

OnFinish = Callable[[int, int], None]  # called with when it began and when it ended, in ns


def report(
    pending: Pending[Completion],
    operation: Operation,
    started_ns: int,
    finished_ns: int,
    answer: int = 0,
) -> None:
    """Finish `pending`: its device began at `started_ns` and is done at `finished_ns`, now.
    `answer`: what a store says (`Completion.answer`).
    """
    env = pending.env
    now: Any = env._now
    soonest: int = now + 1  # the rule of hicache.kernel.stamp
    stamp_ns = finished_ns if finished_ns > soonest else soonest
    completion = Completion(
        pending.number, operation, pending.submitted_ns, started_ns, finished_ns, stamp_ns, 0,
        answer,
    )  # fmt: skip
    post(env, pending, completion, stamp_ns)
