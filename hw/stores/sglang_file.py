"""SGLang's `file` store: a folder with one file a page, under the page's hash and its owner's name.

    FOLDER/HASH_MODEL_RANK_RANKS.bin      the page's bytes, in SGLang's order, and nothing else

What SGLang wrote is read here and the reverse: the same names, the same bytes. A page is written
under a name of its own and then renamed, so that nobody sees half of one. A file is a page only if
it has a page's size: a shorter or longer one is a miss, as one that is gone, and is written anew.
Nothing is synced to the disk, and no file says which model or type it holds but by its name
(`hw.stores.names`).

An operation that takes longer than `timeout_s` has failed: a file system that hangs cannot be
waited for, and what comes of it later reaches no page of L2 (`hw.stores.lease`).
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from hicache.errors import InputError, TransferError
from hicache.operations import PageRuns
from hw.storage.crew import Crew
from hw.storage.host import HostMemory
from hw.stores.contract import numbered
from hw.stores.fence import Fence
from hw.stores.lease import Lease
from hw.stores.names import Owner
from hw.stores.page_order import PageOrder
from hw.stores.room import Room

MOST_WORKERS = 256


class SglangFileStore:
    """An open folder (`hw.stores.contract.PageStore`). Files stay when it is closed.

    hits, misses: pages that were read, or could not be. written, present, declined: pages that were
    written, that were there, for which there was no room (or that are another rank's to write).
    """

    def __init__(
        self,
        folder: Path,
        owner: Owner,
        order: PageOrder,
        host: HostMemory,
        *,
        limit_bytes: int = 0,
        watermark: float = 0.9,
        least_free_bytes: int = 0,
        workers: int = 8,
        timeout_s: float = 0.0,
    ) -> None:
        """`workers`: pages read or written at once. `timeout_s`: of each operation; 0: it is waited
        for, however long. The rest: see `Room`. Raises InputError.
        """
        if not 1 <= workers <= MOST_WORKERS:
            raise InputError(
                f"SGLang file store: workers is {workers}; allowed is 1 to {MOST_WORKERS}"
            )
        if timeout_s < 0:
            raise InputError("SGLang file store: the timeout must not be negative")
        assert order.shape.page_bytes <= host.page_bytes, "a page of L2 is smaller than one of L3"
        self.folder = folder
        self.owner = owner
        self._order = order
        self._host = host
        self._page_bytes = order.shape.page_bytes
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.room = Room(folder, owner, limit_bytes, watermark, least_free_bytes)
            if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
                raise PermissionError(13, "no permission to read and write there")
        except OSError as error:
            raise InputError(f"SGLang file store: {folder}: {error.strerror}") from None
        self._lock = threading.Lock()
        self.hits = self.misses = self.written = self.present = self.declined = 0
        self._crew: Crew | None = Crew("sglang-file", workers)
        self._fence = Fence(self.name, timeout_s) if timeout_s else None

    @property
    def name(self) -> str:
        """For messages."""
        return "SGLang file store"

    def describe(self) -> str:
        """What was opened, for people: one line."""
        room = f"at most {self.room.limit_bytes} bytes" if self.room.limit_bytes else "no limit"
        return (
            f"{self.name}: {self.folder}, files *{self.owner.suffix}.bin of {self._page_bytes} "
            f"bytes ({self._order.layout}), {room}"
        )

    def leading(self, names: Sequence[str]) -> int:
        """See PageStore. SGLang looks at names alone, and finds out later that a file is none of
        its pages.
        """

        def look(lease: Lease) -> int:
            for i, name in enumerate(names):
                if lease.ended or _size_of(self._path(name)) != self._page_bytes:
                    return i
            return len(names)

        return self._in_time("looking for pages", look)

    def read(self, names: Sequence[str], pages: PageRuns) -> int:
        """See PageStore."""
        return self._each("reading", self._read_page, names, numbered(pages))

    def write(self, pages: PageRuns, names: Sequence[str]) -> int:
        """See PageStore."""
        if not self.owner.writes:
            self._count("declined", len(names))
            return self.leading(names)
        return self._each("writing", self._write_page, names, numbered(pages))

    def close(self) -> None:
        """See PageStore."""
        if self._crew is not None:
            if self._fence is not None and self._fence.late:
                self._crew.dismiss()  # one of them hangs
            else:
                self._crew.close()
            self._crew = None

    def _in_time(self, what: str, work: Callable[[Lease], int]) -> int:
        """`work`, behind the fence. Raises TransferError if it takes too long."""
        lease = Lease()
        if self._fence is None:
            return work(lease)
        try:
            return self._fence.call(what, lambda: work(lease))
        except TransferError as error:
            raise error.__cause__ or error from None
        finally:
            lease.end()

    def _each(
        self,
        what: str,
        act: Callable[[str, int, Lease], bool],
        names: Sequence[str],
        pages: list[int],
    ) -> int:
        """`act` for every page; the number of leading ones that succeeded."""
        assert len(names) == len(pages), f"{len(names)} names for {len(pages)} pages"
        crew = self._crew
        assert crew is not None, "an operation on a closed store"
        done = [False] * len(names)

        def all_of_them(lease: Lease) -> int:
            def one(i: int) -> None:
                done[i] = not lease.ended and act(names[i], pages[i], lease)

            try:
                crew.each(one, range(len(names)))
            except OSError as error:
                raise TransferError(f"{self.name}: {self.folder}: {error.strerror}") from error
            return done.index(False) if False in done else len(done)

        return self._in_time(what, all_of_them)

    def _read_page(self, name: str, page: int, lease: Lease) -> bool:
        path = self._path(name)
        content = bytearray(self._page_bytes + 1)  # to see that there is no more than a page
        try:
            with open(path, "rb", buffering=0) as file:
                got = _fill(file.readinto, memoryview(content))
        except FileNotFoundError:
            got = -1
        if got != self._page_bytes:
            self._count("misses", 1)
            return False
        flat = memoryview(content)[: self._page_bytes]
        if not lease.touch(lambda: self._order.decode(flat, self._host.view(page, 1))):
            return False
        self.room.touch(path.name, self._page_bytes)
        self._count("hits", 1)
        return True

    def _write_page(self, name: str, page: int, lease: Lease) -> bool:
        path = self._path(name)
        if _size_of(path) == self._page_bytes:
            self.room.touch(path.name, self._page_bytes)
            self._count("present", 1)
            return True
        if not self.room.reserve(path.name, self._page_bytes):
            self._count("declined", 1)
            return False
        beside = self.folder / f".{uuid.uuid4().hex}.tmp"
        flat: list[memoryview] = []
        try:
            if not lease.touch(
                lambda: flat.append(self._order.encode(self._host.view(page, 1)).data)
            ):
                raise TransferError(f"{self.name}: it is too late to write a page")
            with open(beside, "wb", buffering=0) as file:
                left = flat[0]
                while left:
                    left = left[file.write(left) :]
            os.replace(beside, path)
        except BaseException:
            self.room.release(path.name)
            with suppress(OSError):
                os.remove(beside)
            raise
        self.room.keep(path.name)
        self._count("written", 1)
        return True

    def _path(self, name: str) -> Path:
        return self.folder / self.owner.file_name(name)

    def _count(self, counter: str, pages: int) -> None:
        with self._lock:
            setattr(self, counter, getattr(self, counter) + pages)


def _size_of(path: Path) -> int:
    """Of a file, in bytes; -1 if there is none."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return -1


def _fill(read: Callable[[memoryview], int | None], buffer: memoryview) -> int:
    """Read until the buffer is full or the file ends; how much came."""
    got = 0
    while got < len(buffer):
        more = read(buffer[got:])
        if not more:
            break
        got += more
    return got
