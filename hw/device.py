"""What stands behind a real lane: a device that carries out one operation at a time, in a thread.

    engine --submit--> LiveLanes --> worker thread of a queue --> Device.run(operation, ...)
                                                                         |
    LiveEnvironment <---- machine's inbox <----- Timing, or an error ----+

A device blocks until its work is done (the GPU's or the disk's work, not only its launch), so that
pages may be published when `run` returns. It knows pages and bytes; it knows no tree, policy, or
environment. Devices of different queues run at the same time and share pools; the engine sees to it
that no page is read and written at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from hicache.operations import Operation, PageRuns
from hw.jobs import Control

__all__ = ["Control", "Device", "Step", "Steps", "Timing"]


class Timing(NamedTuple):
    """What a device says of an operation. Times are `time.monotonic_ns()`.

    started_ns: the device began (not: the job was taken from the queue, if the device was not free
    then). `setup_ns`: part of finished - submitted that will not recur, such as the first
    allocation of a work buffer. `steps` and `step_ends_ns` belong to decode bursts.
    """

    started_ns: int
    finished_ns: int
    setup_ns: int = 0
    steps: int = 0
    step_ends_ns: tuple[int, ...] = ()


class Step(NamedTuple):
    """A request's part of a GPU step, as a device that computes needs it.

    `tokens`: ids of the prompt and of the answer (teacher-forced), int32, from position 0 up to at
    least past + new. `pages`: the L1 pages of its KV cache in order; page i holds the positions
    i * page_size .. (i + 1) * page_size - 1.
    """

    request: int
    new_tokens: int
    past_tokens: int
    tokens: object
    pages: PageRuns


# A device gets Steps; where a function stands for them, the worker calls it first.
Steps = tuple[Step, ...] | Callable[[], tuple[Step, ...]]


class Device(Protocol):
    """One queue's hardware."""

    @property
    def name(self) -> str:
        """For messages: "PCIe (zero_copy)", "L3 file (direct)", "GPU (Qwen3-8B)"."""
        ...

    def run(self, operation: Operation, control: Control, steps: tuple[Step, ...] = ()) -> Timing:
        """Carry `operation` out and return when it is done.

        `steps`: what a device that computes needs of each request in a `Prefill` or `Decode`, made
        when the operation was submitted, first the prefill's chunks, then who decodes (`new_tokens`
        1); () for copies, and where nothing is computed from tokens.

        Raises TransferError for a copy that failed: its target pages then hold rubbish, its source
        pages what they held. Anything else that it raises ends the run.
        """
        ...

    def close(self) -> None:
        """Let go of what it holds. Called once, after its last operation."""
        ...
