"""Host memory that a GPU can reach and a disk can read into: page-aligned, taken in chunks, and
pinned where there is a GPU.

    address                                                      one mapping, reserved at once
    |---- chunk 0 ----|---- chunk 1 ----|---- chunk 2 ----|--2--|
    each chunk: look at what is free -> fill it with memory -> pin it -> tell `progress`

A machine's memory may grow as it is used, so what is free is asked before every chunk, never what
is installed; a chunk that does not fit waits a little for memory to appear. A chunk is a multiple
of the caller's page, so that no page, and no copy of one, lies across two pinned pieces.
Refuses to swallow the last of the memory: what fails says what was asked and what was free.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, NamedTuple, Protocol

from hicache.errors import InputError

ALIGNMENT_BYTES = 4096
RESERVE_BYTES = 1 << 30  # what is left to everybody else
_HUGE_PAGES = 14  # MADV_HUGEPAGE
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14
_POPULATE_BYTES = 64 << 20  # one thread's share at a time


class Registrar(Protocol):
    """Who pins: `hw.transfers.driver.Driver`."""

    def register(self, address: int, size_bytes: int) -> None:
        """Pin memory and map it for the device. Raises InputError."""
        ...

    def unregister(self, address: int) -> None:
        """Undo it."""
        ...


class Free(NamedTuple):
    """How much memory can be had, and what says so."""

    size_bytes: int
    source: str


class PinnedMemory:
    """`size_bytes` of host memory at `address`, aligned to 4096 bytes.

    registrar: who pins it; None where there is no GPU: plain memory then.
    page_bytes: no multiple of it from the start lies across two chunks, if chunk_bytes allow.
    register: "start" pins everything now, "lazy" each chunk when `pin` asks for it.
    limit_bytes: more than that is refused at once.
    progress: called with (bytes done, bytes in all) after each chunk that is pinned at the start.
    patience_s: how long a chunk waits for memory to appear.
    Raises InputError, with what was asked and what is free, and gives everything back.
    """

    def __init__(
        self,
        size_bytes: int,
        registrar: Registrar | None = None,
        *,
        page_bytes: int = ALIGNMENT_BYTES,
        chunk_bytes: int = 1 << 30,
        register: Literal["start", "lazy"] = "start",
        limit_bytes: int | None = None,
        progress: Callable[[int, int], object] | None = None,
        patience_s: float = 10.0,
        reserve_bytes: int = RESERVE_BYTES,
        free: Callable[[], Free] | None = None,
    ) -> None:
        assert size_bytes > 0
        assert page_bytes > 0
        if limit_bytes is not None and size_bytes > limit_bytes:
            raise InputError(
                f"host memory: {gib(size_bytes)} were asked for, the limit is {gib(limit_bytes)}"
            )
        step = math.lcm(page_bytes, ALIGNMENT_BYTES)
        self.size_bytes = size_bytes
        self.chunk_bytes = max(step, chunk_bytes // step * step)
        self._registrar = registrar
        self._patience_s = patience_s
        self._reserve_bytes = reserve_bytes
        self._free = free or free_memory
        self._lock = threading.Lock()
        self._held_bytes = 0
        try:
            # Private, so that it is this process's own memory and not shared memory's.
            self._map = mmap.mmap(-1, size_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, ValueError, OverflowError) as error:
            raise self._refusal(f"no room in the address space: {error}") from None
        self.view = memoryview(self._map)
        anchor = ctypes.c_char.from_buffer(self._map)
        self.address = ctypes.addressof(anchor)
        del anchor
        assert self.address % ALIGNMENT_BYTES == 0
        self._pinned = [False] * -(-size_bytes // self.chunk_bytes)
        # Memory that goes while the driver believes it pinned would spoil its address for the next.
        # Not at exit: the driver may be gone by then, and takes its pins along.
        self._unpin = weakref.finalize(
            self, _unpin, registrar, self._pinned, self.address, self.chunk_bytes
        )
        self._unpin.atexit = False
        try:
            if register == "start":
                self._pin_all(progress)
            elif registrar is None:
                self._wait_for_room(size_bytes)
        except BaseException:
            self.close()
            raise

    @property
    def pinned_bytes(self) -> int:
        """How much of it is ready for a device."""
        return self._held_bytes

    def pin(self, offset_bytes: int, size_bytes: int) -> int:
        """See that this part is pinned. Returns how long that took, in ns; 0 if it was already.

        Thread-safe. Raises InputError if there is not enough memory.
        """
        first = offset_bytes // self.chunk_bytes
        last = (offset_bytes + size_bytes - 1) // self.chunk_bytes
        if all(self._pinned[first : last + 1]):
            return 0
        start_ns = time.monotonic_ns()
        with self._lock:
            for chunk in range(first, last + 1):
                if not self._pinned[chunk]:
                    self._take(chunk)
        return time.monotonic_ns() - start_ns

    def close(self) -> None:
        """Unpin it and give it back. Whoever still holds a view of it keeps the mapping alive."""
        with self._lock:
            self._unpin()
            self._held_bytes = 0
        try:
            self.view.release()
            self._map.close()
        except BufferError:
            pass  # a tensor or view of it is still about; the mapping goes with the last of them

    def _pin_all(self, progress: Callable[[int, int], object] | None) -> None:
        for chunk in range(len(self._pinned)):
            self._take(chunk)
            if progress is not None:
                progress(self._held_bytes, self.size_bytes)

    def _take(self, chunk: int) -> None:
        start = chunk * self.chunk_bytes
        size_bytes = min(self.chunk_bytes, self.size_bytes - start)
        self._wait_for_room(size_bytes)
        if self._registrar is not None:
            _populate(self.address + start, size_bytes)
            self._registrar.register(self.address + start, size_bytes)
        self._pinned[chunk] = True
        self._held_bytes += size_bytes

    def _wait_for_room(self, size_bytes: int) -> None:
        give_up_s = time.monotonic() + self._patience_s
        while (free := self._free()).size_bytes < size_bytes + self._reserve_bytes:
            if time.monotonic() >= give_up_s:
                raise self._refusal(
                    f"{gib(free.size_bytes)} are free ({free.source}), of which "
                    f"{gib(self._reserve_bytes)} are left to others"
                )
            time.sleep(0.1)

    def _refusal(self, reason: str) -> InputError:
        done = f" and {gib(self._held_bytes)} were taken" if self._held_bytes else ""
        return InputError(
            f"host memory: {gib(self.size_bytes)} were asked for{done}; {reason}. "
            "Ask for less, or end what uses the memory"
        )


def _unpin(registrar: Registrar | None, pinned: list[bool], address: int, chunk_bytes: int) -> None:
    for chunk, is_pinned in enumerate(pinned):
        if is_pinned and registrar is not None:
            registrar.unregister(address + chunk * chunk_bytes)
        pinned[chunk] = False


def gib(size_bytes: int) -> str:
    """A size for people."""
    return f"{size_bytes / 2**30:.2f} GiB" if size_bytes >= 1 << 20 else f"{size_bytes} bytes"


def free_memory(root: str = "/") -> Free:
    """What this process may still take: the kernel's estimate, or less if a control group says so.

    A group's page cache that is not in use counts as free, as it does in MemAvailable.
    """
    best = Free(1 << 62, "unknown")
    for line in _lines(os.path.join(root, "proc/meminfo")):
        if line.startswith("MemAvailable:"):
            best = Free(int(line.split()[1]) * 1024, "MemAvailable")
    for folder, names in _groups(root):
        limit = _number(os.path.join(folder, names[0]))
        used = _number(os.path.join(folder, names[1]))
        if limit is None or used is None or limit >= 1 << 60:
            continue
        cache = 0
        for line in _lines(os.path.join(folder, "memory.stat")):
            if line.startswith(names[2] + " "):
                cache = int(line.split()[1])
        room = Free(max(0, limit - used + cache), f"limit of the control group {folder}")
        best = min(best, room)
    return best


def _groups(root: str) -> list[tuple[str, tuple[str, str, str]]]:
    """The folders of this process's control groups, from its own up, with their files' names."""
    found: list[tuple[str, tuple[str, str, str]]] = []
    for line in _lines(os.path.join(root, "proc/self/cgroup")):
        _, controllers, path = line.rstrip("\n").split(":", 2)
        if controllers == "":
            top, names = "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            top = "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        parts = [part for part in path.split("/") if part and part != ".."]
        for depth in range(len(parts), -1, -1):
            found.append((os.path.join(root, top, *parts[:depth]), names))
    return found


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.readlines()
    except OSError:
        return []


def _number(path: str) -> int | None:
    """The number in a file; None without one ("max", or no such file)."""
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdigit() else None


def _populate(address: int, size_bytes: int) -> None:
    """Let the kernel put memory behind the addresses, with several threads: it clears every page,
    and pinning would do that in one.
    """
    library = ctypes.CDLL(None, use_errno=True)
    # Large pages where they can be had: fewer of them to pin. No matter if not.
    library.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size_bytes), _HUGE_PAGES)

    def fill(offset: int) -> None:
        size = min(_POPULATE_BYTES, size_bytes - offset)
        where = ctypes.c_void_p(address + offset)
        if library.madvise(where, ctypes.c_size_t(size), _POPULATE_WRITE):
            ctypes.memset(address + offset, 0, size)  # an older kernel: touch it

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        for _ in threads.map(fill, range(0, size_bytes, _POPULATE_BYTES)):
            pass
