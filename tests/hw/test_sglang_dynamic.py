"""Stores of foreign classes: those that work, and every way in which one may not."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from file_store_helpers import content
from page_store_contract import LAYOUT, MLA, PageStoreContract, host, names

from hicache.errors import InputError, TransferError
from hw.storage.host import HostBuffer
from hw.stores.dynamic import DynamicStore
from hw.stores.fence import Fence
from hw.stores.names import Owner
from hw.stores.page_order import MemoryLayout
from hw.stores.staging import BATCH_PAGES, StagingPool

__all__ = ["host"]
MODULE = "a_foreign_store"
OWNER = Owner(model="m")
ORDERS: list[MemoryLayout] = ["layer_first", "page_first", "page_first_direct", "page_head"]


class Generic:
    """A store in a dict, by the generic calls. `said`: what it was told when it was made."""

    def __init__(self, config: Any, kwargs: dict[str, Any]) -> None:
        self.said = (config, kwargs)
        self.held: dict[str, bytes] = {}

    def register_mem_pool_host(self, pool: StagingPool) -> None:
        self.pool = pool

    def batch_exists(self, keys: list[str], extra_info: object = None) -> int:
        return next((i for i, key in enumerate(keys) if key not in self.held), len(keys))

    def batch_get(self, keys: list[str], targets: list[torch.Tensor]) -> list[torch.Tensor | None]:
        found: list[torch.Tensor | None] = []
        for key, target in zip(keys, targets, strict=True):
            if key in self.held:
                raw = torch.frombuffer(bytearray(self.held[key]), dtype=torch.uint8)
                target.copy_(raw.view(target.dtype))
                found.append(target)
            else:
                found.append(None)
        return found

    def batch_set(self, keys: list[str], values: list[torch.Tensor]) -> bool:
        for key, value in zip(keys, values, strict=True):
            raw = value.contiguous().view(torch.uint8).numpy().tobytes()
            self.held.setdefault(key, raw)
        return True


class ZeroCopy(Generic):
    """The same by the v1 calls: it reads and writes the pool at the addresses that it is given."""

    def batch_get_v1(self, keys: list[str], indices: torch.Tensor, extra_info: object = None):
        at, sizes = self.pool.get_page_buffer_meta(indices)
        pieces = len(at) // len(keys)
        done = []
        for i, key in enumerate(keys):
            held = self.held.get(key)
            done.append(held is not None)
            for j in range(pieces):
                if held is not None:
                    k = i * pieces + j
                    part = held[j * sizes[k] : (j + 1) * sizes[k]]
                    ctypes.memmove(at[k], part, sizes[k])
        return done

    def batch_set_v1(self, keys: list[str], indices: torch.Tensor, extra_info: object = None):
        at, sizes = self.pool.get_page_buffer_meta(indices)
        pieces = len(at) // len(keys)
        for i, key in enumerate(keys):
            parts = range(i * pieces, (i + 1) * pieces)
            self.held.setdefault(key, b"".join(ctypes.string_at(at[k], sizes[k]) for k in parts))
        return [True] * len(keys)


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module that holds the classes, as one that was installed would."""
    made = ModuleType(MODULE)
    made.Generic, made.ZeroCopy, made.Number = Generic, ZeroCopy, 5  # type: ignore[attr-defined]
    monkeypatch.setitem(__import__("sys").modules, MODULE, made)
    return made


def make(host: HostBuffer, of: type | str = Generic, **options: Any) -> DynamicStore:
    name = of if isinstance(of, str) else of.__name__
    if not isinstance(of, str):
        setattr(__import__("sys").modules[MODULE], name, of)
    return DynamicStore(MODULE, name, OWNER, LAYOUT, host, **options)


class TestGenericCalls(PageStoreContract):
    def make(self, folder: Path, host: HostBuffer) -> DynamicStore:
        return make(host)


class TestV1Calls(PageStoreContract):
    def make(self, folder: Path, host: HostBuffer) -> DynamicStore:
        return make(host, ZeroCopy, interface="v1")


class TestV1CallsDirect(PageStoreContract):
    def make(self, folder: Path, host: HostBuffer) -> DynamicStore:
        return make(host, ZeroCopy, interface="v1", memory_layout="page_first_direct")


@pytest.mark.parametrize("order", ORDERS)
def test_generic_values_are_in_the_asked_order(host: HostBuffer, order: MemoryLayout) -> None:
    store = make(host, memory_layout=order)
    keys, before = names(1), content(host)
    store.write(((3, 1),), keys)
    assert store._store.held[keys[0]] == bytes(store._pool.order.encode(host.view(3, 1)))
    assert store.read(keys, ((4, 1),)) == 1
    assert content(host)[4] == before[3]


def test_both_kinds_of_calls_write_the_same_bytes(host: HostBuffer) -> None:
    keys = names(5)
    for order in ("page_first", "page_first_direct"):
        stores = [
            make(host, Generic, memory_layout=order),
            make(host, ZeroCopy, memory_layout=order, extra_config={"interface_v1": 1}),
        ]
        assert [store.interface for store in stores] == ["generic", "v1"]
        for store in stores:
            store.write(((7, 5),), keys)
        assert stores[0]._store.held == stores[1]._store.held


def test_mla_has_one_piece_a_page() -> None:
    memory = HostBuffer(8, MLA.page_bytes)
    memory.view(0, 8)[:] = bytes(i % 251 for i in range(8 * MLA.page_bytes))
    owner = Owner(model="m", kind="mla")
    for order in ("page_first", "page_first_direct"):
        store = DynamicStore(
            MODULE, "ZeroCopy", owner, MLA, memory, interface="v1", memory_layout=order
        )
        assert store.write(((0, 3),), names(3)) == 3
        assert store.read(names(3), ((4, 3),)) == 3
        assert content(memory)[4:7] == content(memory)[:3]


def test_mla_is_written_by_rank_0_alone() -> None:
    memory = HostBuffer(8, MLA.page_bytes)
    owner = Owner(model="m", kind="mla", tp_rank=1, tp_size=2)
    store = DynamicStore(MODULE, "Generic", owner, MLA, memory)
    assert store.write(((0, 3),), names(3)) == 0
    assert store._store.held == {}


def test_a_class_is_told_of_its_server(host: HostBuffer) -> None:
    store = make(host, extra_config={"backend_name": "x", "answer": 42})
    config, kwargs = store._store.said
    assert kwargs == {}
    assert (config.tp_rank, config.tp_size, config.model_name) == (0, 1, "m")
    assert config.extra_config["answer"] == 42
    assert config.is_page_first_layout is True
    assert config.is_mla_model is False
    assert store._store.pool.page_size == LAYOUT.page_size_tokens
    assert store._store.pool.get_size_per_token() * 4 == LAYOUT.page_bytes


def test_pools_are_told_when_they_are_all_there(host: HostBuffer) -> None:
    class Waiting(Generic):
        def on_host_pools_registered(self) -> None:
            self.final = self.pool.size

    assert make(host, Waiting)._store.final == 4 * BATCH_PAGES * 4


# ------------------------------------------------------------------ classes that cannot be used


@pytest.mark.parametrize(
    ("module_path", "class_name", "message"),
    [
        ("no_such_module_anywhere", "X", "no_such_module_anywhere cannot be imported"),
        (MODULE, "Missing", f"{MODULE} has no class Missing"),
        (MODULE, "Number", f"{MODULE} has no class Number"),
    ],
)
def test_a_class_that_is_not_there(
    host: HostBuffer, module_path: str, class_name: str, message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        DynamicStore(module_path, class_name, OWNER, LAYOUT, host)
    assert "\n" not in str(caught.value)


def test_a_class_without_a_method(host: HostBuffer) -> None:
    with pytest.raises(InputError, match="it has no batch_get_v1, which v1 calls need"):
        make(host, Generic, interface="v1")


def test_a_class_that_cannot_be_made(host: HostBuffer) -> None:
    class Broken(Generic):
        def __init__(self, config: object, kwargs: object) -> None:
            raise ConnectionError("no server at 10.0.0.1")

    with pytest.raises(InputError, match=r"making it failed: ConnectionError: no server"):
        make(host, Broken)


def test_a_class_that_takes_for_ever_to_make(host: HostBuffer) -> None:
    class Slow(Generic):
        def __init__(self, config: object, kwargs: object) -> None:
            time.sleep(5)

    with pytest.raises(InputError, match=r"making it did not return within 0\.05 s"):
        make(host, Slow, timeout_s=0.05)


def test_a_pool_that_it_refuses(host: HostBuffer) -> None:
    class Picky(Generic):
        def register_mem_pool_host(self, pool: object) -> None:
            raise ValueError("not this pool")

    with pytest.raises(InputError, match="register_mem_pool_host failed: ValueError: not this"):
        make(host, Picky)


@pytest.mark.parametrize("options", [{"timeout_s": 0}, {"berths": 0}])
def test_options_that_cannot_be(host: HostBuffer, options: dict[str, int]) -> None:
    with pytest.raises(InputError, match="dynamic store"):
        make(host, **options)


# ------------------------------------------------------------------ failures of one operation


class Faulty(ZeroCopy):
    """Does what `answers` says for a method, once, instead of its work."""

    answers: dict[str, Any]

    def __init__(self, config: object, kwargs: dict[str, Any]) -> None:
        super().__init__(config, kwargs)
        self.answers = {}

    def __getattribute__(self, method: str) -> Any:
        if method.startswith("batch_") and method in self.answers:
            answer = self.answers.pop(method)
            return answer if callable(answer) else lambda *_: answer
        return super().__getattribute__(method)


def raising(error: BaseException) -> Any:
    def act(*_: object) -> None:
        raise error

    return act


BAD_ANSWERS: list[tuple[str, str, Any, str]] = [
    ("leading", "batch_exists", raising(OSError("gone")), "batch_exists failed: OSError: gone"),
    ("leading", "batch_exists", raising(SystemExit(3)), "batch_exists failed: SystemExit"),
    ("leading", "batch_exists", None, "batch_exists answered None for 4 pages"),
    ("leading", "batch_exists", 5, "batch_exists answered 5 for 4 pages"),
    ("leading", "batch_exists", -1, "batch_exists answered -1 for 4 pages"),
    ("read", "batch_get", raising(OSError("gone")), "batch_get failed: OSError: gone"),
    ("read", "batch_get", None, "batch_get answered NoneType instead of a list"),
    ("read", "batch_get", [torch.zeros(3)] * 4, "answered with 12 bytes for a page of"),
    ("read", "batch_get", ["text"] * 4, "answered with -1 bytes for a page of"),
    ("write", "batch_set", raising(KeyError("k")), "batch_set failed: KeyError"),
    ("read_v1", "batch_get_v1", raising(MemoryError()), "batch_get_v1 failed: MemoryError"),
    ("read_v1", "batch_get_v1", None, "batch_get_v1 answered NoneType"),
    ("read_v1", "batch_get_v1", [True] * 5, "batch_get_v1 answered 5 for 4 pages"),
    ("write_v1", "batch_set_v1", True, "batch_set_v1 answered bool instead of a list"),
    ("write_v1", "batch_set_v1", raising(OSError("full")), "batch_set_v1 failed: OSError: full"),
]


def act(store: DynamicStore, verb: str) -> int:
    keys = names(4)
    if verb == "leading":
        return store.leading(keys)
    if verb.startswith("read"):
        return store.read(keys, ((20, 4),))
    return store.write(((0, 4),), keys)


@pytest.mark.parametrize(("verb", "method", "answer", "message"), BAD_ANSWERS)
def test_a_bad_answer_fails_one_operation(
    host: HostBuffer, verb: str, method: str, answer: Any, message: str
) -> None:
    store = make(host, Faulty, interface="v1" if verb.endswith("v1") else "generic")
    before = content(host)
    if not verb.startswith("write"):
        store.write(((0, 4),), names(4))
    store._store.answers[method] = answer
    with pytest.raises(TransferError, match=message):
        act(store, verb)
    assert act(store, verb) == 4, "the next operation is none the worse"
    if verb.startswith("read"):
        assert content(host)[20:24] == before[:4]
    assert store.failures == 1


SHORT_ANSWERS: list[tuple[str, str, Any, int]] = [
    ("read", "batch_get", [None, None, None, None], 0),
    ("read", "batch_get", [], 0),
    ("write", "batch_set", False, 0),
    ("read_v1", "batch_get_v1", [True, True, False, True], 2),
    ("read_v1", "batch_get_v1", [True, True, True], 3),
    ("write_v1", "batch_set_v1", [True, False, False, False], 1),
    ("write_v1", "batch_set_v1", [], 0),
]


@pytest.mark.parametrize(("verb", "method", "answer", "pages"), SHORT_ANSWERS)
def test_a_short_answer_is_so_many_pages(
    host: HostBuffer, verb: str, method: str, answer: Any, pages: int
) -> None:
    store = make(host, Faulty, interface="v1" if verb.endswith("v1") else "generic")
    if verb.startswith("read"):
        store.write(((0, 4),), names(4))
    before = content(host)
    store._store.answers[method] = answer
    assert act(store, verb) == pages
    if verb.startswith("read"):
        assert content(host)[20 + pages :] == before[20 + pages :]


# ------------------------------------------------------------------ hangs


class Hanging(ZeroCopy):
    """Hangs in its reads until `go`, and then writes all over the pages that it was given."""

    go: threading.Event

    def __init__(self, config: object, kwargs: dict[str, Any]) -> None:
        super().__init__(config, kwargs)
        self.go = threading.Event()
        self.hang = False
        self.over = threading.Event()

    def batch_get_v1(self, keys: list[str], indices: torch.Tensor, extra_info: object = None):
        if self.hang:
            assert self.go.wait(30)
            addresses, sizes = self.pool.get_page_buffer_meta(indices)
            for at, size in zip(addresses, sizes, strict=True):
                ctypes.memset(at, 255, size)
            self.over.set()
            return [True] * len(keys)
        return super().batch_get_v1(keys, indices)


def test_a_hang_fails_one_operation_and_touches_nothing_later(host: HostBuffer) -> None:
    store = make(host, Hanging, interface="v1", timeout_s=0.5, berths=2)
    keys, before = names(4), content(host)
    store.write(((0, 4),), keys)
    store._store.hang = True
    with pytest.raises(TransferError, match=r"batch_get_v1 did not return within 0\.5 s"):
        store.read(keys, ((20, 4),))
    store._store.hang = False
    assert store._fence.late == 1
    assert store.read(keys, ((30, 4),)) == 4, "another berth serves the next one"
    store._store.go.set()
    assert store._store.over.wait(5)
    after = content(host)
    assert after[30:34] == before[:4]
    assert after[20:24] == before[20:24], "a late answer went into L2"


def test_when_all_hang_the_store_says_so_until_one_returns(host: HostBuffer) -> None:
    store = make(host, Hanging, interface="v1", timeout_s=0.3, berths=2)
    keys = names(4)
    store.write(((0, 4),), keys)
    store._store.hang = True
    for _ in range(2):
        with pytest.raises(TransferError, match="did not return"):
            store.read(keys, ((20, 4),))
    with pytest.raises(TransferError, match="no staging memory is free"):
        store.read(keys, ((20, 4),))
    store._store.hang = False
    store._store.go.set()
    deadline = time.monotonic() + 5
    while store._fence.late and time.monotonic() < deadline:
        time.sleep(0.01)
    assert store.read(keys, ((20, 4),)) == 4
    assert store.failures == 3, "also the one that found no staging memory"


def test_a_berth_comes_back_after_every_operation(host: HostBuffer) -> None:
    store = make(host, Faulty, interface="v1", timeout_s=0.2, berths=1)
    for i in range(20):
        if i % 3 == 0:
            store._store.answers["batch_set_v1"] = raising(OSError("x"))
            with pytest.raises(TransferError, match="OSError: x"):
                act(store, "write")
        else:
            assert act(store, "write") == 4


def test_many_threads_at_once(host: HostBuffer) -> None:
    store = make(host, ZeroCopy, interface="v1", berths=3)
    before = content(host)
    errors: list[BaseException] = []

    def use(number: int) -> None:
        try:
            keys = names(6, start=10_000 * number)
            at = 12 * number
            assert store.write(((at, 6),), keys) == 6
            assert store.read(keys, ((at + 6, 6),)) == 6
            assert content(host)[at + 6 : at + 12] == before[at : at + 6]
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=use, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_a_store_that_fails_to_close_is_let_go(host: HostBuffer) -> None:
    class Clinging(Generic):
        closes = 0

        def close(self) -> None:
            self.closes += 1
            raise OSError("busy")

    store = make(host, Clinging)
    store.close()
    store.close()
    assert store._store.closes == 1
    assert store.failures == 1


def test_the_fence_returns_what_it_is_given() -> None:
    fence, ended = Fence("it", 1.0), SimpleNamespace(count=0)

    def count() -> None:
        ended.count += 1

    assert fence.call("adding", lambda: 2 + 3, count) == 5
    assert ended.count == 1
    assert fence.late == 0
