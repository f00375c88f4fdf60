"""Transport: io_uring, past the page cache by one thread, through it by several.

Past the page cache one thread keeps `depth` requests under way, and the disk works on them side by
side. Through the page cache a request is a copy, which the kernel makes in the thread that enters
it: there `workers` threads have a ring each, and a share of the requests. A thread enters the
kernel once for a whole batch, without the GIL, which is what makes small pages in the cache fast:
with `preadv` every page costs the GIL twice. What is not in the cache after all is read like any
other request, the rest of the batch with it.

Each direction has rings of its own, so that the two workers of the lanes need no common lock. Past
the cache, memory and file are registered where the kernel allows it, which spares looking them up
and pinning pages at every request; where it does not, the same requests go unregistered, and
`describe` says why. (A copy by the kernel needs no pinned pages.) Where io_uring itself is missing
or forbidden that is an InputError; nothing takes its place.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from queue import SimpleQueue

import numpy as np

from hicache.errors import InputError, TransferError
from hw.storage import ring as io_uring
from hw.storage.crew import Crew
from hw.storage.host import BLOCK_BYTES
from hw.storage.plan import Request, Requests
from hw.storage.ring import LARGEST_BUFFER_BYTES, Ring
from hw.storage.slot_file import Access, SlotFile

LARGEST_DEPTH = 4096
# How often an operation's requests may be given back with "try again" before that is an error.
MOST_RETRIES = 1000
AGAIN = (errno.EAGAIN, errno.EINTR)
# A batch for less is not worth a thread's turn.
SMALLEST_BATCH_BYTES = 1 << 20


class UringTransport:
    """Moves bytes between a file and one region of memory."""

    last_bytes = 0

    def __init__(
        self, file: SlotFile, address: int, size_bytes: int, access: Access, depth: int,
        workers: int,
    ) -> None:  # fmt: skip
        """`address`, `size_bytes`: the region that the requests' memory offsets count in. `depth`:
        requests under way in a ring. `workers`: threads, if they go through the cache.
        """
        if not 1 <= depth <= LARGEST_DEPTH:
            raise InputError(f"io_uring: a depth of {depth}; 1 to {LARGEST_DEPTH} are possible")
        cached = access == "page cache"
        self._depth = depth
        self._rings = workers if cached else 1
        self.at_once = workers if cached else depth
        self._directions: list[_Direction] = []
        try:
            for verb in ("reading", "writing"):
                self._directions.append(_Direction(verb, file, address, self._rings, depth))
            if not cached:
                for direction in self._directions:
                    direction.register(size_bytes)
        except BaseException:
            self.close()
            raise
        registered = all(direction.registered for direction in self._directions)
        self.fence_bytes = LARGEST_BUFFER_BYTES if registered else 1 << 62

    def describe(self) -> str:
        """For people."""
        notes = [note for direction in self._directions for note in direction.notes]
        usual = "registered file" if self._rings > 1 else "registered buffers and file"
        said = "; ".join(dict.fromkeys(notes)) or usual
        threads = f"{self._rings} threads and rings of " if self._rings > 1 else ""
        return f"{threads}depth {self._depth} each way, {said}"

    def read(self, parts: Iterable[Requests]) -> None:
        """File -> memory. Raises TransferError when nothing is under way any more."""
        self._directions[0].move(parts)

    def write(self, parts: Iterable[Requests]) -> None:
        """Memory -> file. Raises TransferError when nothing is under way any more."""
        self._directions[1].move(parts)

    def close(self) -> None:
        """Let go of threads and rings."""
        for direction in self._directions:
            direction.close()
        self._directions.clear()


def shares(parts: Iterable[Requests], rings: int, depth: int) -> Iterator[list[Requests]]:
    """What the threads take, a list of equal shares at a time: of all that is known two thirds,
    then two thirds of what is left and of the next part, and so on, until shares are small. So
    turns are few (each costs the GIL), and all `rings` of them end at about the same time.
    """
    left: Requests | None = None
    for part in parts:
        left = part if left is None or not len(left) else np.concatenate((left, part))
        made = _equal(left, rings, depth)
        left = left[sum(map(len, made)) :]
        yield made
    while left is not None and len(left):
        made = _equal(left, rings, depth)
        left = left[sum(map(len, made)) :]
        yield made


def _equal(requests: Requests, rings: int, depth: int) -> list[Requests]:
    """About two thirds of `requests` in shares for `rings` threads: of `depth` requests at most,
    and no smaller than they are worth.
    """
    count = len(requests)
    mean_bytes = int(requests[:, 2].sum()) // max(1, count)
    least = max(1, SMALLEST_BATCH_BYTES // max(1, mean_bytes))
    each = min(depth, max(least, 2 * count // (3 * rings)))
    turns = rings * each
    end = min(count, turns * max(1, 2 * count // (3 * turns)))
    return [requests[at : min(at + each, end)] for at in range(0, end, each)]


class _Direction:
    """One direction: rings, and a thread for each of them."""

    def __init__(self, verb: str, file: SlotFile, address: int, rings: int, depth: int) -> None:
        self._depth = depth
        self._all: list[_Queue] = []
        self._free: SimpleQueue[_Queue] = SimpleQueue()
        self._crew = Crew(f"L3 {verb}", rings)
        try:
            for _ in range(rings):
                queue = _Queue(verb, file, address, depth)
                self._all.append(queue)
                self._free.put(queue)
        except BaseException:
            self.close()
            raise

    @property
    def notes(self) -> list[str]:
        """What was not registered, and why."""
        return [note for queue in self._all for note in queue.notes]

    @property
    def registered(self) -> bool:
        """Whether the memory is."""
        return all(queue.registered for queue in self._all)

    def register(self, size_bytes: int) -> None:
        """Register the memory, if the kernel lets us: for what goes past the page cache."""
        for queue in self._all:
            queue.register_buffers(size_bytes)

    def move(self, parts: Iterable[Requests]) -> None:
        """All requests, each ring a share at a time."""
        if len(self._all) == 1:
            self._move(np.concatenate(list(parts)))
        else:
            self._crew.stream(self._move, shares(parts, len(self._all), self._depth))

    def close(self) -> None:
        """Let go of threads and rings."""
        self._crew.close()
        for queue in self._all:
            queue.ring.close()
        self._all.clear()

    def _move(self, part: Requests) -> None:
        # With several callers there may be more threads than rings: they wait here.
        queue = self._free.get()
        try:
            queue.move(part)
        finally:
            self._free.put(queue)


class _Queue:
    """One ring, on the file, in one direction; for one thread at a time."""

    def __init__(self, verb: str, file: SlotFile, address: int, depth: int) -> None:
        self._verb = verb
        self._file = file
        self._address = address
        self._depth = depth
        self.notes: list[str] = []
        self.registered = False
        try:
            self.ring = Ring(depth)
        except OSError as error:
            raise InputError(
                f"the back-end io_uring cannot be used here: {_why_not(error)}; choose direct or "
                f"pread"
            ) from error
        self._fixed_file = self._try("file", lambda: self.ring.register_file(file.fd))
        self._step_bytes = 1
        self._use((io_uring.READ, io_uring.WRITE))

    def register_buffers(self, size_bytes: int) -> None:
        """Register the memory; without, its pages are pinned at every request. It is for O_DIRECT,
        which goes on at a whole block only.
        """
        self._step_bytes = BLOCK_BYTES
        buffers = [
            (self._address + first, min(LARGEST_BUFFER_BYTES, size_bytes - first))
            for first in range(0, size_bytes, LARGEST_BUFFER_BYTES)
        ]
        self.registered = self._try("buffers", lambda: self.ring.register_buffers(buffers))
        if self.registered:
            self._use((io_uring.READ_FIXED, io_uring.WRITE_FIXED))

    def _use(self, opcodes: tuple[int, int]) -> None:
        flags = io_uring.FIXED_FILE if self._fixed_file else 0
        fd = 0 if self._fixed_file else self._file.fd
        self.ring.use(opcodes[self._verb == "writing"], flags, fd)

    def _try(self, what: str, register) -> bool:
        try:
            register()
        except OSError as error:
            self.notes.append(f"{what} not registered: {error.strerror}")
            return False
        return True

    def move(self, requests: Requests) -> None:
        """All of `requests`. After an error no further one begins, and those under way are waited
        for: the kernel must not write into memory that others were given.
        """
        ring, depth = self.ring, self._depth
        sizes = requests[:, 2]
        rests: list[Request] = []  # of requests that ended early
        begun = under_way = retries = 0
        error: TransferError | None = None
        while True:
            more = len(requests) - begun
            if more and under_way < depth and error is None:
                count = min(more, depth - under_way)
                self._prepare(requests[begun : begun + count], begun)
                begun, under_way, more = begun + count, under_way + count, more - count
            if not under_way:
                break
            ring.enter(max(1, under_way // 4) if more and error is None else under_way)
            tags, results = ring.reap()
            under_way -= len(tags)
            odd = results != sizes[tags]
            for tag, result in zip(tags[odd].tolist(), results[odd].tolist(), strict=True):
                retries += -result in AGAIN
                try:
                    request = Request._make(requests[tag].tolist())
                    rests.append(self._rest(request, result, retries))
                except TransferError as failure:
                    error = error or failure
            if rests and error is None and begun == len(requests):
                requests = np.concatenate((requests, np.array(rests, np.int64)))
                sizes = requests[:, 2]
                rests.clear()
        if error is not None:
            raise error

    def _prepare(self, requests: Requests, first_tag: int) -> None:
        memory = requests[:, 1]
        buffers = memory // LARGEST_BUFFER_BYTES if self.registered else 0
        self.ring.prepare(
            requests[:, 0], self._address + memory, requests[:, 2], buffers, first_tag
        )

    def _rest(self, request: Request, result: int, retries: int) -> Request:
        """What is left to do of a request that ended early."""
        position, memory, size = request
        if result < 0:
            if -result in AGAIN and retries < MOST_RETRIES:
                return request
            error = OSError(-result, os.strerror(-result))
            raise self._file.failure(self._verb, position, error)
        done = result - result % self._step_bytes
        if not done:
            why = "the file ends here" if self._verb == "reading" else "the disk took nothing"
            raise self._file.failure(self._verb, position, why)
        return Request(position + done, memory + done, size - done)


def allowed() -> bool:
    """Whether there is io_uring here, and we may use it."""
    try:
        Ring(1).close()
    except OSError:
        return False
    return True


def _why_not(error: OSError) -> str:
    if error.errno == errno.ENOSYS:
        return "this kernel has no io_uring (or a container hides it)"
    if error.errno in {errno.EPERM, errno.EACCES}:
        return (
            "io_uring is forbidden (by a container's rules, or by the setting "
            "kernel.io_uring_disabled)"
        )
    return error.strerror or str(error)
