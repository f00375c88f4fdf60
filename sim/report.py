"""The one way in which a simulated device says that an operation is over: once it is."""

from __future__ import annotations

from hicache.kernel import Pending, post, stamp
from hicache.operations import Completion, Operation


def report(
    pending: Pending[Completion],
    operation: Operation,
    started_ns: int,
    finished_ns: int,
) -> None:
    """Finish `pending`: its device began at `started_ns` and is done at `finished_ns`, now."""
    env = pending.env
    stamp_ns = stamp(env, finished_ns)
    completion = Completion(
        pending.number, operation, pending.submitted_ns, started_ns, finished_ns, stamp_ns
    )
    post(env, pending, completion, stamp_ns)
