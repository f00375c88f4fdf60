"""Writes what the `hicache trace` commands make, and says what was lost, written and left out.

OUT appears complete or not at all, is never the trace that is read, and replaces a file only where
that is asked for. What is said goes to standard output, or to standard error where OUT is it.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

from hicache.errors import InputError
from traces.convert import convert
from traces.features import Features, survey
from traces.progress import ProgressBar
from traces.reader import OnError, Trace, open_trace
from traces.rows import Layout, RowStream
from traces.writers import TraceWriter

NAMED_BAD_ROWS = 3


class Bar:
    """A progress bar for each pass over one trace, for `open_trace`'s `progress`."""

    def __init__(self) -> None:
        self._bar: ProgressBar | None = None

    def __call__(self, bytes_done: int, bytes_total: int | None) -> None:
        if self._bar is not None:
            self._bar(bytes_done, bytes_total)

    @contextmanager
    def shown(self, description: str) -> Iterator[None]:
        """Show how far reading has come within the block."""
        with ProgressBar(description) as self._bar:
            try:
                yield
            finally:
                self._bar = None


@dataclass(slots=True)
class Input:
    """The trace that a command reads."""

    trace: Trace
    bar: Bar


def open_input(path: str, block_size: int | None, tokenizer: str, on_error: str) -> Input:
    """Open the trace of a command's arguments. `InputError` as of `open_trace`."""
    if block_size is not None and block_size < 1:
        raise InputError(f"block size is {block_size}: it must be at least 1 token")
    bar = Bar()
    trace = open_trace(
        path,
        block_tokens=block_size,
        progress=bar,
        tokenizer=tokenizer,
        on_error=cast(OnError, on_error),  # looked at there
    )
    return Input(trace, bar)


def check_out(out: str, trace_path: str | None, *, force: bool) -> None:
    """`InputError` if `out` must not be written: before anything is read."""
    if out == "-":
        return
    try:
        mode = os.stat(out).st_mode
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{out}: cannot be written: {reason}") from None
    if not stat.S_ISREG(mode):
        raise InputError(f"{out}: is no file that could be replaced; - is standard output")
    if trace_path not in (None, "-") and any(
        os.path.samefile(out, each) for each in _files_of(trace_path)
    ):
        raise InputError(f"{out}: is the trace itself, which is never overwritten")
    if not force:
        raise InputError(f"{out}: is there already; --force replaces it")


def _files_of(path: str) -> list[str]:
    if not os.path.isdir(path):
        return [path]
    return [entry.path for entry in os.scandir(path) if entry.is_file()]


def say(out: str, line: str) -> None:
    """Print a line beside what is written to `out`."""
    print(line, file=sys.stderr if out == "-" else sys.stdout)


def save(
    make: Callable[[], RowStream],
    writer: TraceWriter,
    out: str,
    source: Input | None = None,
    features: Features | None = None,
) -> Features:
    """Write the rows of `make()`, a new pass each time, and say what became of them.

    What is lost is said before anything is written: after a pass that looks for it, or, where the
    trace can be read only once, as what may be lost, and exactly when it is done. `source` is where
    the rows come from, if from a trace, and `features` what they have, if that is known. Returned
    is what the rows turned out to have.
    """
    rereadable = source is None or source.trace.rereadable
    stream = make()
    if features is None and rereadable and writer.loses(stream.layout, None):
        with _reading(source, "reading"):
            features = survey(stream)
        stream = make()

    def tell(lost: list[str]) -> None:
        for each in lost:
            say(out, f"{'may be lost' if features is None else 'lost'}: {each}")

    hashed = _Hashed(writer)
    with _reading(source, "writing"):
        tell(writer.loses(stream.layout, features))
        done = convert(stream, hashed, out)
    if features is None:
        for each in done.lost:
            say(out, f"lost: {each}")
    for note in stream.notes:
        say(out, f"note: {note}")
    if source is not None and source.trace.bad.count:
        bad = source.trace.bad
        named = "; ".join(str(each) for each in bad.listed[:NAMED_BAD_ROWS])
        more = "; ..." if bad.count > NAMED_BAD_ROWS else ""
        say(
            out,
            f"left out: {bad.count:,} malformed row{'s' if bad.count > 1 else ''}: {named}{more}",
        )
    name = "standard output" if out == "-" else out
    say(out, f"{name}: {done.requests:,} requests as {writer.name}, sha256 {hashed.hexdigest()}")
    return done.features


@contextmanager
def _reading(source: Input | None, description: str) -> Iterator[None]:
    if source is None:
        yield
    else:
        with source.bar.shown(description):
            yield


class _Hashed:
    """A writer that hashes what it writes: the SHA-256 that reading it will say."""

    def __init__(self, writer: TraceWriter) -> None:
        self._writer = writer
        self._digest = hashlib.sha256()

    @property
    def name(self) -> str:
        return self._writer.name

    @property
    def describes(self) -> str:
        return self._writer.describes

    def loses(self, layout: Layout, features: Features | None) -> list[str]:
        return self._writer.loses(layout, features)

    def lines(self, stream: RowStream) -> Iterator[bytes]:
        update = self._digest.update
        for line in self._writer.lines(stream):
            update(line)
            yield line

    def hexdigest(self) -> str:
        return self._digest.hexdigest()
