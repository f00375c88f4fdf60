"""One trace is written in another format, and what that loses is said before anything is written.

What is lost depends on the format, on the layout and on what the rows make use of. The last is
known after a first pass (`features.survey`). A pipe can be read only once: then what *may* be lost
is said before, and what was lost after.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hicache.errors import InputError
from traces.features import Features
from traces.made import Hints, hints_of
from traces.outfile import write_lines
from traces.rows import Batch, Layout, RowStream
from traces.writers import TraceWriter, writer_of


@dataclass(frozen=True, slots=True)
class Conversion:
    """What was written: how many requests, what of the trace is not in the file, what it has."""

    requests: int
    lost: tuple[str, ...]
    features: Features


class _Counted:
    """A stream that counts what passes."""

    def __init__(self, stream: RowStream) -> None:
        self._stream = stream
        self.features = Features()

    @property
    def layout(self) -> Layout:
        return self._stream.layout

    @property
    def notes(self) -> list[str]:
        return self._stream.notes

    @property
    def hints(self) -> Hints:
        return hints_of(self._stream)

    def batches(self) -> Iterator[Batch]:
        add, layout = self.features.add, self.layout
        for batch in self._stream.batches():
            for row in batch.rows:
                add(row, layout)
            yield batch


def convert(
    stream: RowStream,
    writer: TraceWriter,
    path: str | os.PathLike[str],
    *,
    features: Features | None = None,
    tell: Callable[[list[str]], None] | None = None,
) -> Conversion:
    """Write the rows of `stream` to `path`, compressed if that ends in ".gz" or ".zst".

    The file appears complete or not at all ("-" is standard output). `tell` is called once, before
    anything is written, with what will be lost; without `features`, with what may be. `InputError`
    for a malformed row, one that the format cannot hold, no rows at all, and a file that cannot be
    written.
    """
    if tell is not None:
        tell(writer.loses(stream.layout, features))
    counted = _Counted(stream)
    write_lines(_checked(writer, counted), path)
    lost = writer.loses(stream.layout, counted.features)
    return Conversion(counted.features.rows, tuple(lost), counted.features)


def _checked(writer: TraceWriter, counted: _Counted) -> Iterator[bytes]:
    yield from writer.lines(counted)
    # Here, so that a file without requests does not appear.
    if not counted.features.rows:
        raise InputError("there is not one request to write")


def write(
    stream: RowStream,
    path: str | os.PathLike[str],
    format_name: str = "hicache",
    *,
    block_tokens: int | None = None,
) -> Conversion:
    """`convert` by the name of the format."""
    return convert(stream, writer_of(format_name, block_tokens=block_tokens), path)
