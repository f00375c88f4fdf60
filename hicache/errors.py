"""Every error this project raises on purpose.

    HiCacheError
    +-- InputError              the user's file, option or size is wrong (exit code 2)
    +-- EngineError
    |   +-- TransferError       one operation failed; the engine falls back and goes on
    |   +-- PredecessorError    the pages in front did not arrive, so these cannot be published
    |   +-- DeviceError         a device broke or no longer answers: the run ends
    +-- RecordError
        +-- ReplayDivergence    the engine did something else than the record says
        +-- RecordEnded         the record stops before the run does (it was cut off)

A broken invariant is none of these: it is an `assert`, a bug here.
Exceptions that cross an `await` take positional arguments only: SimPy rebuilds them as
`type(e)(*e.args)`.
"""

from __future__ import annotations


class HiCacheError(Exception):
    """The root: catching it catches everything this project raises on purpose."""


class InputError(HiCacheError):
    """Something the user gave is wrong. The message names the file, line, key and value, and what
    is allowed.
    """


class EngineError(HiCacheError):
    """Something went wrong while the engine ran."""


class TransferError(EngineError):
    """An operation failed on its device. Arguments: a message for people."""


class PredecessorError(EngineError):
    """The pages before these failed to arrive in the same tier; publishing these would leave a
    hole.
    """


class DeviceError(EngineError):
    """A device broke, or no longer answers. Arguments: a message naming device, queue and
    operation.
    """


class RecordError(HiCacheError):
    """A record of completions cannot be replayed."""


class ReplayDivergence(RecordError):
    """The engine submitted something else than the record holds. Arguments: a message naming the
    operation.
    """


class RecordEnded(RecordError):
    """The record was cut off: the engine went on to an operation or completion that was never
    written.
    """
