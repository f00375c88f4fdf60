"""What the tests of the file store share."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from hw.storage import ring as io_uring
from hw.storage.host import HostBuffer
from hw.storage.ring import Ring

ROOT = Path(__file__).resolve().parents[2]


def have_io_uring() -> bool:
    """Whether this kernel lets us."""
    try:
        Ring(1).close()
    except OSError:
        return False
    return True


needs_io_uring = pytest.mark.skipif(not have_io_uring(), reason="io_uring is not allowed here")


def have_direct(folder: Path) -> bool:
    """Whether the file system does O_DIRECT."""
    try:
        fd = os.open(folder / "direct", os.O_CREAT | os.O_RDWR | os.O_DIRECT)
    except OSError:
        return False
    os.close(fd)
    os.unlink(folder / "direct")
    return True


class CrookedMemory:
    """Host memory that begins in the middle of a block, as memory that nobody aligned may."""

    def __init__(self, pages: int, page_bytes: int) -> None:
        self.pages, self.page_bytes = pages, page_bytes
        self._inner = HostBuffer(1, pages * page_bytes + 64)
        self.address = self._inner.address + 64

    def view(self, first: int, count: int) -> memoryview:
        start = 64 + first * self.page_bytes
        return self._inner.view(0, 1)[start : start + count * self.page_bytes]


def pattern(number: int, size: int) -> bytes:
    """Bytes that no other page has."""
    return random.Random(number).randbytes(size)


def fill(host, *, start: int = 1) -> list[bytes]:
    """Give every page of `host` a pattern of its own."""
    pages = [pattern(start + i, host.page_bytes) for i in range(host.pages)]
    for i, content in enumerate(pages):
        host.view(i, 1)[:] = content
    return pages


def content(host) -> list[bytes]:
    """All pages."""
    return [bytes(host.view(i, 1)) for i in range(host.pages)]


def runs(numbers) -> tuple[tuple[int, int], ...]:
    """A list of page numbers as runs, as the allocator would write it."""
    made: list[list[int]] = []
    for number in numbers:
        if made and made[-1][0] + made[-1][1] == number:
            made[-1][1] += 1
        else:
            made.append([number, 1])
    return tuple((first, count) for first, count in made)


def environment(*folders: Path) -> dict[str, str]:
    """For another Python that is to import what this one can, and what is in `folders`."""
    paths = os.pathsep.join(map(str, [ROOT, *folders, *filter(None, sys.path)]))
    return {**os.environ, "PYTHONPATH": paths}


def python(code: str, *arguments: object, wait: bool = True) -> subprocess.Popen[str]:
    """Another Python, in the project's root. With `wait`, it has ended with 0."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    if wait:
        out, err = process.communicate(timeout=50)
        assert process.returncode == 0, err
        process.said = out  # type: ignore[attr-defined]
    return process


def without_registering(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel refuses to register memory and files."""
    real = io_uring.system_call

    def refusing(number: int, *arguments: int) -> int:
        if number == io_uring.REGISTER:
            raise OSError(12, "Cannot allocate memory")
        return real(number, *arguments)

    monkeypatch.setattr(io_uring, "system_call", refusing)


FORBID_IO_URING = """
import ctypes, struct
# A seccomp filter, as containers have one: io_uring_setup (425) fails with EPERM, the rest is let.
def op(code, jump_true, jump_false, value):
    return struct.pack("<HBBI", code, jump_true, jump_false, value)
program = op(0x20, 0, 0, 0) + op(0x15, 0, 1, 425)
program += op(6, 0, 0, 0x00050001) + op(6, 0, 0, 0x7FFF0000)
buffer = ctypes.create_string_buffer(program, len(program))
header = struct.pack("<HxxxxxxQ", 4, ctypes.addressof(buffer))
head = ctypes.create_string_buffer(header, len(header))
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl.argtypes = [ctypes.c_ulong] * 5
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.addressof(head), 0, 0) == 0, ctypes.get_errno()
"""
