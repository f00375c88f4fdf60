"""A table of columns as a Parquet file, written by a child process that imports pyarrow meanwhile.

Importing pyarrow takes longer than a short simulation. So the child is started first, imports it
while the parent simulates, and gets the columns through a pipe at the end:

    parent   start() -- simulate --------------- write(columns, path) -- wait
    child         \\__ import pyarrow, wait for input __ build, write, answer "ok" or why not, exit

The child is a new interpreter (posix_spawn), no fork: it is safe beside threads, in notebooks and
on macOS. It lives in its own process group, so that Ctrl-C reaches the parent alone, and it ends
when the pipe closes, however the parent ends. Where there is no posix_spawn, or the child has died,
the parent writes the file itself. The bytes are the same either way: both call `write_payload` with
the same payload, and nothing in the file depends on time, place or process.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

import msgspec

from hicache.errors import HiCacheError
from scenario.columns import Column, Columns, Payload, encode_columns, write_payload

_OK = b"ok"
_HEAD_BYTES = 8


class Header(msgspec.Struct, array_like=True):
    """What the child needs to know before the bytes of the columns."""

    path: str
    rows: int
    columns: list[Column]


class ParquetError(HiCacheError):
    """The file could not be written. Arguments: a message naming the file and the reason."""


class ParquetWriter:
    """Writes one Parquet file, through a child started early where that is possible.

    Use it as a context manager, or call `close`: without a `write` the child is ended, never left
    behind.
    """

    def __init__(self) -> None:
        """A writer without a child: `write` works in this process. See `start`."""
        self._pid = 0
        self._to_child = -1
        self._from_child = -1

    @classmethod
    def start(cls) -> ParquetWriter:
        """A writer whose child imports pyarrow from now on. Takes a millisecond; never fails."""
        writer = cls()
        if _can_spawn():
            try:
                writer._spawn()
            except OSError:
                writer.close()
        return writer

    @property
    def has_child(self) -> bool:
        """Whether a child was started and not yet used or ended."""
        return self._pid > 0

    def write(
        self,
        columns: Columns,
        path: str | os.PathLike[str],
        meanwhile: Callable[[], object] | None = None,
    ) -> None:
        """Writes `columns` (name -> equally long sequences) to `path`; usable once.

        `meanwhile` is called while a child writes. Returns when the file is complete. Raises
        ParquetError with the reason when it could not be written, ValueError and TypeError as
        `encode_columns` does.
        """
        file = os.path.abspath(os.fspath(path))
        try:
            payload = encode_columns(columns)
            answer = self._answer_of_child(payload, file, meanwhile) if self.has_child else None
        finally:
            self.close()
        if answer is None:
            # No child, or it died without a word: its work is done here.
            answer = _attempt(payload, file)
        if answer != _OK:
            raise ParquetError(f"cannot write {file}: {answer.decode(errors='replace')}")

    def close(self) -> None:
        """Ends the child, if there is one, and waits for its end. Does nothing the second time."""
        for name in ("_to_child", "_from_child"):
            if getattr(self, name) >= 0:
                os.close(getattr(self, name))
                setattr(self, name, -1)
        if self._pid:
            pid, self._pid = self._pid, 0
            # It has answered, or has nothing to do: its own end need not be waited for.
            try:
                if os.waitpid(pid, os.WNOHANG) == (0, 0):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass  # Where SIGCHLD is ignored, the system has collected it.

    def __enter__(self) -> ParquetWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def _spawn(self) -> None:
        child_in, self._to_child = os.pipe()
        try:
            self._from_child, child_out = os.pipe()
            try:
                self._pid = os.posix_spawn(
                    sys.executable,
                    # -S: site is not needed, since the child gets this process's import path as it
                    # is.
                    [sys.executable, "-I", "-S", "-c", _child_code()],
                    os.environ,
                    file_actions=[
                        (os.POSIX_SPAWN_DUP2, child_in, 0),
                        (os.POSIX_SPAWN_DUP2, child_out, 1),
                        # What it has to say goes through the answer; if it cannot, the parent does
                        # the work.
                        (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                    ],
                    setpgroup=0,
                )
            finally:
                os.close(child_out)
        finally:
            os.close(child_in)

    def _answer_of_child(
        self, payload: Payload, path: str, meanwhile: Callable[[], object] | None
    ) -> bytes | None:
        """`_OK`, the reason of a failure, or None when the child died without an answer."""
        header = msgspec.msgpack.encode(Header(path, payload.rows, payload.columns))
        try:
            _send(self._to_child, memoryview(len(header).to_bytes(_HEAD_BYTES, "little") + header))
            for buffer in payload.buffers:
                _send(self._to_child, buffer)
        except BrokenPipeError:
            return None
        if meanwhile is not None:
            meanwhile()
        answer = b""
        while part := os.read(self._from_child, 1 << 16):
            answer += part
        return answer or None


def serve() -> None:
    """What the child does: warms up, reads one table from descriptor 0, writes it, answers on 1."""
    warm_up()
    head = _receive(_HEAD_BYTES)
    if len(head) < _HEAD_BYTES:
        return
    header = msgspec.msgpack.decode(_receive(int.from_bytes(head, "little")), type=Header)
    buffers: list[memoryview] = []
    for column in header.columns:
        for size in (column.values_bytes, column.valid_bytes):
            data = _receive(size)
            if len(data) < size:
                return
            buffers.append(memoryview(data))
    os.write(1, _attempt(Payload(header.rows, header.columns, buffers), header.path))


def warm_up() -> None:
    """Does what the first file costs more than the second: imports, and first use of the codecs."""
    # pyarrow works without numpy from version 18 on, and starts twice as fast. An older one ends
    # this child here, and the parent writes the file.
    sys.modules["numpy"] = None  # pyright: ignore[reportArgumentType]
    write_payload(encode_columns({"number": [1, None], "text": ["a", "b"]}), os.devnull)


def _can_spawn() -> bool:
    # A program that embeds Python may name itself as the executable.
    is_python = "python" in os.path.basename(sys.executable or "").lower()
    return hasattr(os, "posix_spawn") and is_python and not getattr(sys, "frozen", False)


def _child_code() -> str:
    path = [os.path.abspath(each) for each in sys.path if isinstance(each, str)]
    # An editable installation may find this package by other means than the path.
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    path += [here] if here not in path else []
    return f"import sys; sys.path[:] = {path!r}; from scenario.parquet import serve; serve()"


def _attempt(payload: Payload, path: str) -> bytes:
    try:
        write_payload(payload, path)
    except Exception as error:
        return _reason(error)
    return _OK


def _reason(error: Exception) -> bytes:
    return f"{type(error).__name__}: {error}".encode()


def _send(descriptor: int, data: memoryview) -> None:
    while data.nbytes:
        data = data[os.write(descriptor, data) :]


def _receive(size: int) -> bytes:
    parts: list[bytes] = []
    while size and (part := os.read(0, min(size, 1 << 20))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
