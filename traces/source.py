"""A trace's bytes, decompressed, in pieces of whole lines. Knows gzip and zstd, but no format.

The compression is told by the first bytes, never by the name. A regular file can be read again and
again; standard input and other pipes once. Every failure to read is an `InputError` that names the
file.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import select
import stat
import sys
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import Any, NoReturn, Protocol

from hicache.errors import InputError
from traces.rows import BadRows

# Called with the (compressed) bytes read so far and their total, None where it cannot be known (a
# pipe).
Progress = Callable[[int, "int | None"], None]

# Small pieces stay in the processor's caches: 128 KiB decodes 1.5 times as fast as 1 MiB.
PIECE_BYTES = 128 << 10
SMALL_PIECE_BYTES = 16 << 10
HEAD_BYTES = 64 << 10
LONGEST_LINE_BYTES = 64 << 20

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
# A frame to be passed over, such as parallel compressors begin with.
ZSTD_SKIPPED = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")
UTF8_MARK = b"\xef\xbb\xbf"


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...
    def close(self) -> None: ...


class _CountedFile(io.RawIOBase):
    """A binary file that counts what was taken out of it."""

    def __init__(self, file: Any, owned: bool) -> None:
        super().__init__()
        self.bytes_done = 0
        self._file = file
        self._owned = owned

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        count = self._read(buffer)
        if not self.bytes_done:
            # The compression is told by the first bytes, which a pipe may give one by one.
            while 0 < count < len(ZSTD_MAGIC) and (more := self._read(memoryview(buffer)[count:])):
                count += more
        self.bytes_done += count
        return count

    def _read(self, buffer: Any) -> int:
        while (count := self._file.readinto(buffer)) is None:
            # A pipe that does not block, and has nothing yet: that is not its end.
            select.select([self._file], [], [])
        return count

    def close(self) -> None:
        if self._owned and not self.closed:
            self._file.close()
        super().close()


class _Reopened:
    """A regular file that is open only while it is read."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._at = 0

    def readinto(self, buffer: Any, /) -> int:
        with open(self._path, "rb", buffering=0) as file:
            file.seek(self._at)
            count = file.readinto(buffer) or 0
        self._at += count
        return count

    def close(self) -> None:
        pass


class _Stream:
    """One pass over the decompressed bytes. `close` it, also after an error."""

    def __init__(self, path: str, name: str, piece_bytes: int, *, stays_open: bool) -> None:
        self.name = name
        self.piece_bytes = piece_bytes
        if path == "-" and sys.stdin is None:
            raise InputError(f"{name}: cannot be opened: it is closed")
        try:
            if path == "-":
                file: Any = sys.stdin.buffer
            elif stays_open:
                file = open(path, "rb", buffering=0)  # noqa: SIM115 (`close` closes it)
            else:
                file = _Reopened(path)
        except OSError as error:
            raise InputError(f"{name}: cannot be opened: {_reason(error)}") from None
        self._counted = _CountedFile(file, owned=path != "-")
        self._raw = io.BufferedReader(self._counted, piece_bytes)
        self.bytes_total = _size_bytes(file)
        self._kind = "file"
        self._bytes: _Readable = self._raw
        try:
            self._open_compressed()
        except BaseException:
            self.close()
            raise

    @property
    def bytes_done(self) -> int:
        return self._counted.bytes_done

    def _open_compressed(self) -> None:
        try:
            magic = self._raw.peek(len(ZSTD_MAGIC))
        except OSError as error:
            self._fail(error)
        if magic.startswith(GZIP_MAGIC):
            import gzip

            self._kind = "gzip data"
            self._bytes = gzip.GzipFile(fileobj=self._raw)
        elif magic.startswith(ZSTD_MAGIC) or ZSTD_SKIPPED.match(magic):
            import pyarrow

            self._kind = "zstd data"
            self._bytes = pyarrow.CompressedInputStream(
                pyarrow.PythonFile(self._raw, mode="r"), "zstd"
            )

    def read(self, size_bytes: int) -> bytes:
        """The next bytes, at most `size_bytes` of them; none at the end."""
        try:
            return self._bytes.read(size_bytes)
        except (OSError, EOFError, zlib.error) as error:
            self._fail(error)

    def _fail(self, error: Exception) -> NoReturn:
        if self._kind == "file":
            raise InputError(f"{self.name}: cannot be read: {_reason(error)}") from None
        raise InputError(
            f"{self.name}: the {self._kind} is damaged or cut off: {_reason(error)}"
        ) from None

    def close(self) -> None:
        if self._bytes is not self._raw:
            self._bytes.close()
        self._raw.close()
        self._counted.close()


class Source:
    """The text of one trace. `name` is what errors call it: its path, or "standard input".

    `rereadable` says whether more than one pass is possible.
    """

    def __init__(self, path: str | os.PathLike[str], progress: Progress | None = None) -> None:
        self.path = os.fspath(path)
        self.name = "standard input" if self.path == "-" else self.path
        self._progress = progress
        # A pipe's only stream, opened for its head and kept for the one pass it allows.
        self._pipe: _Stream | None = None
        self._pipe_taken = False
        self._head: bytes | None = None
        self._sha256 = ""
        # What becomes of lines that are too long; whoever starts a pass may set another.
        self.bad = BadRows(self.name)
        # False: between reads the file is closed, and little of it is held. Set so by a reader that
        # reads more files at once than a process may have open.
        self.stays_open = True
        self.rereadable = False
        if self.path != "-":
            try:
                mode = os.stat(self.path).st_mode
            except (OSError, ValueError) as error:
                raise InputError(f"{self.name}: cannot be opened: {_reason(error)}") from None
            if stat.S_ISDIR(mode):
                raise InputError(f"{self.name}: is a folder; a trace is a file")
            self.rereadable = stat.S_ISREG(mode)

    def head(self) -> bytes:
        """The first bytes of the text, up to 64 KiB. Later passes get them all the same."""
        if self._head is None:
            stream = self._stream()
            try:
                self._head = stream.read(HEAD_BYTES)
            except BaseException:
                stream.close()
                raise
            if self.rereadable:
                stream.close()
            else:
                self._pipe = stream
        head = self._head.removeprefix(UTF8_MARK)
        if not self.stays_open and self.rereadable:
            self._head = None
        return head

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        """Yield (number of the first line, bytes) for pieces that end at the end of a line.

        Lines count from 1. The last piece may lack its final newline. A line of more than 64 MiB
        goes to `bad`, and is never in memory as a whole. A pipe can be read once: the second pass
        is an `InputError`.
        """
        line = 1
        parts: list[bytes] = []
        parts_bytes = 0
        too_long = False
        with closing(self.chunks()) as chunks:
            for data in chunks:
                cut = data.rfind(b"\n") + 1
                if too_long:
                    start = data.find(b"\n") + 1
                    if not start:
                        continue
                    too_long = False
                    line += 1
                else:
                    start = 0
                if cut > start:
                    piece = b"".join((*parts, data[start:cut]))
                    yield line, piece
                    line += piece.count(b"\n")
                    parts, parts_bytes = [], 0
                parts.append(data[cut:])
                parts_bytes += len(data) - cut
                if parts_bytes > LONGEST_LINE_BYTES:
                    reason = f"longer than {LONGEST_LINE_BYTES >> 20} MiB"
                    self.bad.refuse(line, "", f"{reason}; a trace has one request a line")
                    parts, parts_bytes = [], 0
                    too_long = True
        if piece := b"".join(parts):
            yield line, piece

    def chunks(self) -> Generator[bytes]:
        """Yield the text in chunks that are cut anywhere: for what has no lines to rely on.

        The progress callback is told of each read. A pipe can be read once: the second pass is an
        `InputError`.
        """
        stream, first = self._open()
        digest = hashlib.sha256()
        try:
            while data := first or stream.read(stream.piece_bytes):
                digest.update(data)
                if self._progress is not None:
                    self._progress(stream.bytes_done, stream.bytes_total)
                if first:
                    data = data.removeprefix(UTF8_MARK)
                    first = b""
                yield data
            self._sha256 = digest.hexdigest()
        finally:
            stream.close()

    def sha256(self) -> str:
        """SHA-256 of the text, hexadecimal, the same however it is compressed.

        Free after a complete pass; otherwise the file is read for it. From a pipe it is known only
        after a complete pass (an `InputError` before).
        """
        if not self._sha256:
            if not self.rereadable:
                raise InputError(f"{self.name}: its SHA-256 is known once it was read to its end")
            for _ in self.chunks():
                pass
        return self._sha256

    def close(self) -> None:
        """Let go of a pipe that will not be read. A file is open only during a pass."""
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None

    def _stream(self) -> _Stream:
        if self.stays_open or not self.rereadable:
            return _Stream(self.path, self.name, PIECE_BYTES, stays_open=True)
        return _Stream(self.path, self.name, SMALL_PIECE_BYTES, stays_open=False)

    def _open(self) -> tuple[_Stream, bytes]:
        """A stream, and the bytes of its start that were already taken from it."""
        if self.rereadable:
            stream = self._stream()
            try:
                return stream, stream.read(stream.piece_bytes)
            except BaseException:
                stream.close()
                raise
        if self._pipe_taken:
            raise InputError(
                f"{self.name}: can be read only once; save it to a file to read it again"
            )
        self.head()
        assert self._pipe is not None, "a pipe's stream is kept until it is taken"
        stream, self._pipe = self._pipe, None
        self._pipe_taken = True
        return stream, self._head or b""


def _size_bytes(file: Any) -> int | None:
    try:
        status = os.fstat(file.fileno())
    except (OSError, AttributeError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _reason(error: Exception) -> str:
    """The reason alone, without errno and path: the message names the file already."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(reason.split()) or type(error).__name__
