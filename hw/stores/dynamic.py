"""Any class of SGLang's HiCacheStorage interface as a store, by module and class name.

    calls     exists                 read                        write
    generic   batch_exists(names)    batch_get(names, targets)   batch_set(names, values)
    v1        batch_exists(names)    batch_get_v1(names, host indices), batch_set_v1(the same)

"v1" classes read and write the host pool they were registered with in place (`hw.stores.staging`).
A class is made as SGLang makes it, `cls(storage_config, kwargs)`, and every call goes through a
fence (`hw.stores.fence`). An answer is believed only if it makes sense: a count that is none, a
list that is too short, a page of another size are failures of this one operation. Nothing of SGLang
is needed here; a class that imports it needs it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hicache.errors import InputError, TransferError
from hicache.operations import PageRuns
from hw.stores.contract import numbered
from hw.stores.fence import Fence
from hw.stores.foreign import Interface, load_class, storage_config
from hw.stores.names import Owner
from hw.stores.page_order import MemoryLayout

if TYPE_CHECKING:
    from hw.pools import KvLayout
    from hw.storage.host import HostMemory

BERTHS = 4


class Parts:
    """What operations that went well were made up of, ns in all: waiting for host memory and making
    pages in it, the store's own calls, copies between that memory and L2. A store that is slow and
    a host that has too few cores for its copies look alike in the sum (sglang#21880).
    """

    __slots__ = ("allocation_ns", "copy_ns", "io_ns")

    def __init__(self) -> None:
        self.allocation_ns = self.io_ns = self.copy_ns = 0


class DynamicStore:
    """A class, loaded and fenced in (`hw.stores.contract.PageStore`).

    failures: operations of it that failed, of any kind. reading, writing: what the others took.
    """

    def __init__(
        self,
        module_path: str,
        class_name: str,
        owner: Owner,
        layout: KvLayout,
        host: HostMemory,
        *,
        extra_config: Mapping[str, Any] | None = None,
        interface: Interface | None = None,
        memory_layout: MemoryLayout = "page_first",
        timeout_s: float = 30.0,
        berths: int = BERTHS,
    ) -> None:
        """`interface`: what `extra_config["interface_v1"]` says if None. `timeout_s`: for each
        call, also the making. `berths`: operations at once. Raises InputError if there is no such
        class, if it lacks a method, or if making it fails.
        """
        from hw.stores.staging import StagingPool

        if timeout_s <= 0 or berths < 1:
            raise InputError("dynamic store: the timeout must be above 0 and berths 1 or more")
        extra = dict(extra_config or {})
        if interface is None:
            interface = "v1" if extra.get("interface_v1") else "generic"
        self.interface: Interface = interface
        self.owner = owner
        self.failures = 0
        self.reading, self.writing = Parts(), Parts()
        self._lock = threading.Lock()
        self._class = f"{module_path}.{class_name}"
        self._host = host
        self._fence = Fence(self.name, timeout_s)
        self._pool = StagingPool(layout, memory_layout, berths)
        self._page_bytes = self._pool.order.shape.page_bytes
        assert self._page_bytes <= host.page_bytes, "a page of L2 is smaller than one of L3"
        config = storage_config(owner, extra, memory_layout)
        try:
            self._store: Any = self._fence.call(
                "making it", lambda: load_class(module_path, class_name, interface)(config, {})
            )
            for method in ("register_mem_pool_host", "on_host_pools_registered"):
                act = getattr(self._store, method, None)
                if act is not None:
                    given = (self._pool,) if method == "register_mem_pool_host" else ()
                    self._fence.call(method, lambda act=act, given=given: act(*given))
        except TransferError as error:
            if isinstance(error.__cause__, InputError):
                raise error.__cause__ from None
            raise InputError(str(error)) from error
        self._closed = False

    @property
    def name(self) -> str:
        """For messages."""
        return f"dynamic store {self._class}"

    def describe(self) -> str:
        """What was made, for people: one line."""
        return (
            f"{self.name}: {self.interface} calls, pages of {self._page_bytes} bytes "
            f"({self._pool.layout}), at most {self._fence.timeout_s:g} s a call"
        )

    def leading(self, names: Sequence[str]) -> int:
        """See PageStore."""
        found = 0
        with self._counting():
            for batch in _batches(names):
                here = self._ask_leading(batch)
                found += here
                if here < len(batch):
                    break
        return found

    def read(self, names: Sequence[str], pages: PageRuns) -> int:
        """See PageStore."""
        return self._in_batches(names, numbered(pages), self._read_batch, self.reading)

    def write(self, pages: PageRuns, names: Sequence[str]) -> int:
        """See PageStore."""
        if not self.owner.writes:
            return self.leading(names)
        return self._in_batches(names, numbered(pages), self._write_batch, self.writing)

    def close(self) -> None:
        """See PageStore. A store that fails to close is let go of."""
        if not self._closed:
            self._closed = True
            act = getattr(self._store, "close", None)
            if callable(act):
                try:
                    self._fence.call("close", act)
                except TransferError:
                    self._count()

    # ------------------------------------------------------------------ one batch

    def _in_batches(
        self,
        names: Sequence[str],
        pages: list[int],
        act: Callable[[int, Sequence[str], list[int], _Loan, _Laps], int],
        parts: Parts,
    ) -> int:
        assert len(names) == len(pages), f"{len(names)} names for {len(pages)} pages"
        done = 0
        with self._counting():
            for batch in _batches(names):
                laps = _Laps()
                berth = self._pool.take_berth(self._fence.timeout_s)
                laps.end("allocation_ns")
                loan = _Loan(lambda berth=berth: self._pool.give_berth(berth))
                try:
                    here = act(berth, batch, pages[done : done + len(batch)], loan, laps)
                finally:
                    loan.drop()
                laps.add_to(parts, self._lock)
                done += here
                if here < len(batch):
                    break
        return done

    @contextmanager
    def _counting(self) -> Iterator[None]:
        """One operation: should it fail, it is counted."""
        try:
            yield
        except TransferError:
            self._count()
            raise

    def _count(self) -> None:
        with self._lock:
            self.failures += 1

    def _read_batch(
        self, berth: int, names: Sequence[str], pages: list[int], loan: _Loan, laps: _Laps
    ) -> int:
        pool, keys = self._pool, list(names)
        if self.interface == "v1":
            indices = pool.host_indices(berth, len(keys))
            arrived = self._flags(
                "batch_get_v1", self._call("batch_get_v1", loan, keys, indices), len(keys)
            )
            laps.end("io_ns")
            pool.unload(berth, self._host, pages[:arrived])
            laps.end("copy_ns")
            return arrived
        targets = [pool.get_dummy_flat_data_page() for _ in keys]
        laps.end("allocation_ns")
        answer = self._call("batch_get", loan, keys, targets)
        laps.end("io_ns")
        arrived = 0
        for page, content in zip(pages, self._list("batch_get", answer), strict=False):
            if content is None:
                break
            size = self._size_of(content)
            if size != self._page_bytes:
                raise TransferError(
                    f"{self.name}: batch_get answered with {size} bytes for a page of "
                    f"{self._page_bytes}"
                )
            pool.put(content, self._host, page)
            arrived += 1
        laps.end("copy_ns")
        return arrived

    def _write_batch(
        self, berth: int, names: Sequence[str], pages: list[int], loan: _Loan, laps: _Laps
    ) -> int:
        pool, keys = self._pool, list(names)
        pool.load(berth, self._host, pages)
        laps.end("copy_ns")
        if self.interface == "v1":
            indices = pool.host_indices(berth, len(keys))
            answer = self._call("batch_set_v1", loan, keys, indices)
            laps.end("io_ns")
            return self._flags("batch_set_v1", answer, len(keys))
        values = [pool.get_data_page(pool.first_token(berth, i)) for i in range(len(keys))]
        stored = self._call("batch_set", loan, keys, values)
        laps.end("io_ns")
        if stored:
            return len(keys)
        # It says no more than that not all of them are there.
        return self._ask_leading(keys)

    def _ask_leading(self, names: Sequence[str]) -> int:
        answer = self._call("batch_exists", None, list(names))
        if not isinstance(answer, int) or not 0 <= answer <= len(names):
            raise TransferError(
                f"{self.name}: batch_exists answered {answer!r} for {len(names)} pages"
            )
        return int(answer)

    def _call(self, method: str, loan: _Loan | None, *arguments: Any) -> Any:
        act = getattr(self._store, method)
        if loan is None:
            return self._fence.call(method, lambda: act(*arguments))
        loan.hold()
        return self._fence.call(method, lambda: act(*arguments), loan.drop)

    def _flags(self, method: str, answer: Any, pages: int) -> int:
        """Leading pages for which a v1 call says yes; those that it says nothing of failed."""
        flags = self._list(method, answer)
        if len(flags) > pages:
            raise TransferError(f"{self.name}: {method} answered {len(flags)} for {pages} pages")
        for i, flag in enumerate(flags):
            if not flag:
                return i
        return len(flags)

    def _list(self, method: str, answer: Any) -> Sequence[Any]:
        if not isinstance(answer, list | tuple):
            raise TransferError(
                f"{self.name}: {method} answered {type(answer).__name__} instead of a list"
            )
        return answer

    def _size_of(self, content: Any) -> int:
        try:
            return int(content.numel()) * int(content.element_size())
        except Exception:
            return -1


class _Laps:
    """The parts of one batch, by the clock."""

    def __init__(self) -> None:
        self._begun_ns = time.monotonic_ns()
        self._spent: list[tuple[str, int]] = []

    def end(self, part: str) -> None:
        """What was done since the last end was this part of `Parts`."""
        now_ns = time.monotonic_ns()
        self._spent.append((part, now_ns - self._begun_ns))
        self._begun_ns = now_ns

    def add_to(self, parts: Parts, lock: threading.Lock) -> None:
        """Count them."""
        with lock:
            for part, ns in self._spent:
                setattr(parts, part, getattr(parts, part) + ns)


class _Loan:
    """A berth that an operation took. It is given back when the operation is over and no call that
    may still use it is under way, whichever comes last.
    """

    def __init__(self, give: Callable[[], object]) -> None:
        self._give = give
        self._holders = 1
        self._lock = threading.Lock()

    def hold(self) -> None:
        """One more uses it."""
        with self._lock:
            self._holders += 1

    def drop(self) -> None:
        """One less."""
        with self._lock:
            self._holders -= 1
            last = not self._holders
        if last:
            self._give()


def _batches(names: Sequence[str]) -> Iterator[Sequence[str]]:
    from hw.stores.staging import BATCH_PAGES

    for start in range(0, len(names), BATCH_PAGES):
        yield names[start : start + BATCH_PAGES]
