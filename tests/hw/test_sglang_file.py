"""The store in SGLang's file format: names, bytes, room, and what may go wrong with a folder."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from file_store_helpers import content
from page_store_contract import LAYOUT, MLA, PageStoreContract, host, names

from hicache.errors import InputError, TransferError
from hicache.operations import Copy, Lookup
from hicache.requests import Request
from hw.device import Control
from hw.storage.host import HostBuffer
from hw.stores.device import StoreCounts, StoreDevice, store_devices
from hw.stores.names import Owner
from hw.stores.page_names import PageNames
from hw.stores.page_order import MEMORY_LAYOUTS, MemoryLayout, PageOrder, PageShape
from hw.stores.room import Room
from hw.stores.sglang_file import SglangFileStore
from traces.page_hash import page_hashes

OWNER = Owner(model="Qwen/Qwen3-8B")
PAGE = LAYOUT.page_bytes
__all__ = ["host"]


def open_store(folder: Path, host: HostBuffer, owner: Owner = OWNER, **options) -> SglangFileStore:
    order = PageOrder(PageShape.of(LAYOUT), options.pop("layout", "page_first"))
    return SglangFileStore(folder, owner, order, host, workers=3, **options)


class TestSglangFileStore(PageStoreContract):
    def make(self, folder: Path, host: HostBuffer) -> SglangFileStore:
        return open_store(folder / "new" / "folder", host)


# ------------------------------------------------------------------ names


def test_the_name_of_a_file() -> None:
    assert OWNER.file_name("ab12") == "ab12_Qwen-Qwen3-8B_0_1.bin"
    split = replace(OWNER, tp_rank=1, tp_size=2, pp_rank=2, pp_size=4, cp_rank=1, cp_size=3)
    assert split.suffix == "_Qwen-Qwen3-8B_1_2_4_2_cp1_3"
    assert replace(split, kind="mla").suffix == "_Qwen-Qwen3-8B_4_2_cp1_3"
    assert Owner(model="", kind="mla").suffix == "_"


def test_no_two_ranks_or_models_share_a_name() -> None:
    """sglang#15175: with two configurations and one folder, the same tokens share no key."""
    owners = [
        Owner(model=model, tp_rank=rank, tp_size=size, pp_rank=stage, pp_size=3)
        for model in ("a", "b")
        for size in (1, 2, 4)
        for rank in range(size)
        for stage in range(3)
    ]
    assert len({owner.file_name("0") for owner in owners}) == len(owners)


def test_two_types_share_names_as_in_sglang_and_do_not_when_marked() -> None:
    """sglang#33268: SGLang's names know no type; `marks` adds it."""
    assert OWNER.suffix == Owner(model=OWNER.model).suffix
    marked = [replace(OWNER, marks="format", format=f"{each}-page_first-64") for each in "ab"]
    assert len({OWNER.suffix, *(owner.suffix for owner in marked)}) == 3


def test_mla_is_written_by_rank_0_alone(tmp_path: Path, host: HostBuffer) -> None:
    writer = Owner(model="m", kind="mla", tp_size=2)
    reader = replace(writer, tp_rank=1)
    order = PageOrder(PageShape.of(MLA), "page_first")
    memory = HostBuffer(4, MLA.page_bytes)
    memory.view(0, 1)[:] = bytes(range(MLA.page_bytes))
    first = SglangFileStore(tmp_path, writer, order, memory)
    second = SglangFileStore(tmp_path, reader, order, memory)
    keys = names(1)
    assert second.write(((0, 1),), keys) == 0
    assert first.write(((0, 1),), keys) == 1
    assert second.write(((0, 1),), keys) == 1
    assert second.read(keys, ((2, 1),)) == 1
    assert content(memory)[2] == bytes(range(MLA.page_bytes))
    assert (second.declined, second.written, first.written) == (2, 0, 1)
    first.close()
    second.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tp_rank": 2, "tp_size": 2}, "tp_rank is 2: allowed is 0 to 1"),
        ({"pp_rank": -1}, "pp_rank is -1"),
        ({"model": "m" * 200}, "too long for a file"),
        ({"marks": "format"}, "format is empty"),
        ({"model": "a\0b"}, "zero byte"),
    ],
)
def test_an_owner_that_cannot_be(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Owner(**{"model": "m", **options})  # type: ignore[arg-type]


# ------------------------------------------------------------------ bytes


@pytest.mark.parametrize("layout", MEMORY_LAYOUTS)
def test_bytes_are_those_of_sglangs_tensors(layout: MemoryLayout) -> None:
    """Element by element: what the file holds where, by the shape that SGLang's pool has."""
    layers, tokens, heads, dim = 3, 4, 2, 4
    shape = PageShape(layers=layers, parts=2, tokens=tokens, heads=heads, head_bytes=2 * dim)
    ours = torch.arange(layers * 2 * tokens * heads * dim, dtype=torch.int16)
    encoded = PageOrder(shape, layout).encode(ours.numpy().view(np.uint8))
    flat = torch.from_numpy(encoded).view(torch.int16)
    page = ours.view(layers, 2, tokens, heads, dim)
    dims = {
        "layer_first": (2, layers, tokens, heads, dim),
        "page_first": (2, tokens, layers, heads, dim),
        "page_first_direct": (2, layers, tokens, heads, dim),
        "page_head": (2, heads, tokens, layers, dim),
    }[layout]
    theirs = flat.view(dims)
    for part, layer, token, head in product(range(2), range(layers), range(tokens), range(heads)):
        at = {
            "layer_first": (part, layer, token, head),
            "page_first": (part, token, layer, head),
            "page_first_direct": (part, layer, token, head),
            "page_head": (part, head, token, layer),
        }[layout]
        assert torch.equal(theirs[at], page[layer, part, token, head])
    back = bytearray(shape.page_bytes)
    PageOrder(shape, layout).decode(encoded, memoryview(back))
    assert bytes(back) == ours.numpy().tobytes()


def test_mla_layouts() -> None:
    shape = PageShape(layers=2, parts=1, tokens=3, heads=1, head_bytes=2)
    ours = np.arange(12, dtype=np.uint8)
    assert PageOrder(shape, "layer_first").encode(ours).tolist() == list(range(12))
    swapped = [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11]
    assert PageOrder(shape, "page_first").encode(ours).tolist() == swapped
    with pytest.raises(InputError, match="page_head"):
        PageOrder(shape, "page_head")


def test_k_and_v_of_two_sizes_have_no_format() -> None:
    with pytest.raises(InputError, match="differ in size"):
        PageShape.of(replace(LAYOUT, head_dim_v=2))


def test_the_file_holds_the_page_and_nothing_else(tmp_path: Path, host: HostBuffer) -> None:
    store, keys = open_store(tmp_path, host), names(2)
    store.write(((5, 2),), keys)
    assert sorted(os.listdir(tmp_path)) == sorted(OWNER.file_name(key) for key in keys)
    order = PageOrder(PageShape.of(LAYOUT), "page_first")
    for i, key in enumerate(keys):
        held = (tmp_path / OWNER.file_name(key)).read_bytes()
        assert held == order.encode(host.view(5 + i, 1)).tobytes()
    store.close()


def test_padded_pages_of_l2_are_stored_without_the_padding(tmp_path: Path) -> None:
    memory = HostBuffer(4, 4096)
    memory.view(0, 1)[:] = os.urandom(4096)
    store = open_store(tmp_path, memory)
    assert store.write(((0, 1),), names(1)) == 1
    assert (tmp_path / OWNER.file_name(names(1)[0])).stat().st_size == PAGE
    assert store.read(names(1), ((1, 1),)) == 1
    assert content(memory)[1][:PAGE] == content(memory)[0][:PAGE]
    store.close()


# ------------------------------------------------------------------ a restart, and damage


def test_another_run_finds_what_the_first_left(tmp_path: Path, host: HostBuffer) -> None:
    first = open_store(tmp_path, host)
    first.write(((0, 3),), names(3))
    before = content(host)
    first.close()
    second = open_store(tmp_path, host)
    assert second.leading(names(4)) == 3
    assert second.read(names(3), ((30, 3),)) == 3
    assert content(host)[30:33] == before[:3]
    second.close()
    assert open_store(tmp_path, host, replace(OWNER, tp_size=2)).leading(names(3)) == 0


@pytest.mark.parametrize("size", [0, PAGE - 1, PAGE + 1])
def test_a_file_of_another_size_is_no_page(tmp_path: Path, host: HostBuffer, size: int) -> None:
    store, keys, before = open_store(tmp_path, host), names(3), content(host)
    store.write(((0, 3),), keys)
    (tmp_path / OWNER.file_name(keys[1])).write_bytes(b"x" * size)
    assert store.leading(keys) == 1
    assert store.read(keys, ((20, 3),)) == 1
    assert content(host)[20] == before[0]
    assert content(host)[21] == before[21], "rubbish went into L2"
    assert (store.hits, store.misses) == (2, 1)
    store.close()


def test_a_page_that_went_between_question_and_read(tmp_path: Path, host: HostBuffer) -> None:
    store, keys = open_store(tmp_path, host), names(2)
    store.write(((0, 2),), keys)
    assert store.leading(keys) == 2
    (tmp_path / OWNER.file_name(keys[0])).unlink()
    assert store.read(keys, ((20, 2),)) == 0
    store.close()


def test_a_folder_that_goes_away_fails_one_operation(tmp_path: Path, host: HostBuffer) -> None:
    folder = tmp_path / "l3"
    store, keys = open_store(folder, host), names(2)
    folder.rmdir()
    with pytest.raises(TransferError, match="SGLang file store"):
        store.write(((0, 2),), keys)
    folder.mkdir()
    assert store.write(((0, 2),), keys) == 2
    assert sorted(os.listdir(folder)) == sorted(OWNER.file_name(key) for key in keys)
    store.close()


def test_a_write_that_fails_leaves_nothing(
    tmp_path: Path, host: HostBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path, host, limit_bytes=100 * PAGE)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(TransferError, match="No space left"):
            store.write(((0, 1),), names(1))
    assert os.listdir(tmp_path) == []
    assert store.room.used_bytes == 0
    assert store.write(((0, 1),), names(1)) == 1
    store.close()


def test_a_file_where_the_folder_should_be(tmp_path: Path, host: HostBuffer) -> None:
    (tmp_path / "l3").write_bytes(b"")
    with pytest.raises(InputError, match=r"SGLang file store: .*l3"):
        open_store(tmp_path / "l3", host)
    with pytest.raises(InputError, match="workers is 0"):
        SglangFileStore(
            tmp_path, OWNER, PageOrder(PageShape.of(LAYOUT), "page_first"), host, workers=0
        )


# ------------------------------------------------------------------ room


def test_a_cap_holds_and_the_oldest_leave(tmp_path: Path, host: HostBuffer) -> None:
    """sglang#26670: cap 100 pages, write 1,000: never over 100 + in flight, oldest gone."""
    store, keys = open_store(tmp_path, host, limit_bytes=100 * PAGE), names(1000)
    for i, key in enumerate(keys):
        assert store.write(((i % 300, 1),), [key]) == 1
        assert len(os.listdir(tmp_path)) <= 100
    there = [i for i, key in enumerate(keys) if store.leading([key])]
    assert there == list(range(1000 - len(there), 1000))
    assert len(there) == 98  # the watermark's 90, and 8 more until the last write
    assert store.room.evicted == 1000 - len(there)
    store.close()


def test_a_restart_counts_what_is_there(tmp_path: Path, host: HostBuffer) -> None:
    """sglang#26670, lmcache#4664: the cap holds over restarts, by what lies in the folder."""
    keys = names(60)
    store = open_store(tmp_path, host)
    for i, key in enumerate(keys):
        store.write(((i, 1),), [key])
        os.utime(tmp_path / OWNER.file_name(key), ns=(i, i))
    store.close()
    (tmp_path / "somebody-else.bin").write_bytes(b"x" * 100_000)
    again = open_store(tmp_path, host, limit_bytes=40 * PAGE)
    left = [i for i, key in enumerate(keys) if again.leading([key])]
    assert left == list(range(60 - 36, 60)), "36 pages are the watermark of 40"
    assert again.room.used_bytes == 36 * PAGE
    assert (tmp_path / "somebody-else.bin").exists()
    again.close()


def test_a_model_whose_name_ends_alike_is_somebody_else(tmp_path: Path, host: HostBuffer) -> None:
    longer, shorter = Owner(model="my_model"), Owner(model="model")
    first = open_store(tmp_path, host, longer)
    assert first.write(((0, 10),), names(10)) == 10
    first.close()
    second = open_store(tmp_path, host, shorter, limit_bytes=5 * PAGE)
    assert second.room.used_bytes == 0
    assert second.write(((0, 20),), names(20)) == 20
    second.close()
    assert sum(longer.owns(name) for name in os.listdir(tmp_path)) == 10


def test_what_is_used_stays(tmp_path: Path, host: HostBuffer) -> None:
    store = open_store(tmp_path, host, limit_bytes=10 * PAGE, watermark=1.0)
    keys = names(12)
    store.write(((0, 1),), keys[:1])
    for i in range(1, 10):
        store.write(((i, 1),), [keys[i]])
    assert store.read(keys[:1], ((20, 1),)) == 1
    assert store.write(((1, 1),), keys[1:2]) == 1  # there already: used, too
    for i in (10, 11):
        store.write(((i, 1),), [keys[i]])
    assert [store.leading([key]) for key in keys] == [1, 1, 0, 0, *[1] * 8]
    store.close()


def test_a_page_larger_than_the_cap_is_declined(tmp_path: Path, host: HostBuffer) -> None:
    store = open_store(tmp_path, host, limit_bytes=PAGE - 1)
    assert store.write(((0, 2),), names(2)) == 0
    assert (store.declined, os.listdir(tmp_path)) == (2, [])
    store.close()


def test_free_space_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room(tmp_path, OWNER, least_free_bytes=1000)
    free = [1500]
    monkeypatch.setattr("hw.stores.room._free_bytes", lambda _: free[0])
    for i in range(5):
        assert room.reserve(OWNER.file_name(str(i)), 100)
        (tmp_path / OWNER.file_name(str(i))).write_bytes(b"x" * 100)
        room.keep(OWNER.file_name(str(i)))
        free[0] -= 100
    assert room.reserve(OWNER.file_name("5"), 100)
    assert not (tmp_path / OWNER.file_name("0")).exists()
    assert (tmp_path / OWNER.file_name("1")).exists()
    free[0] = 0
    assert not room.reserve(OWNER.file_name("6"), 100)


def test_what_is_being_written_is_no_victim(tmp_path: Path) -> None:
    room = Room(tmp_path, OWNER, limit_bytes=200)
    assert room.reserve("a", 100)
    assert room.reserve("b", 100)
    assert not room.reserve("c", 100)
    room.release("a")
    assert room.reserve("c", 100)


@pytest.mark.parametrize("options", [{"limit_bytes": -1}, {"watermark": 0}, {"watermark": 1.1}])
def test_room_that_cannot_be(tmp_path: Path, options: dict[str, float]) -> None:
    with pytest.raises(InputError, match="SGLang file store"):
        Room(tmp_path, OWNER, **options)  # type: ignore[arg-type]


# ------------------------------------------------------------------ behind the lanes


class Tokens:
    """Token ids by key, as a run makes them."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, request: Request, upto: int) -> list[int]:
        self.asked += 1
        runs = [*request.prompt_runs, *(request.output_runs or ())]
        keys = [key for first, count in runs for key in range(first, first + count)]
        return [4 * key + i for key in keys for i in range(4)][: upto + 3]


def request(number: int, prompt, answer=None, extra: int = 0) -> Request:
    pages = sum(count for _, count in prompt)
    return Request(
        number, 0, 4 * pages + extra, 9, prompt, pages, output_runs=answer
    )  # fmt: skip


def test_names_of_keys_are_the_hashes_of_their_tokens() -> None:
    tokens = Tokens()
    names_of = PageNames(4, tokens)
    names_of.learn(request(0, [(10, 2), (50, 1)], [(70, 2)], extra=3))
    ids = [4 * key + i for key in (10, 11, 50, 70, 71) for i in range(4)]
    assert names_of.names(((10, 2), (50, 1), (70, 2))) == page_hashes(ids, 4)
    # What is known is not hashed again; what goes on from it is chained to it.
    names_of.learn(request(1, [(10, 2)]))
    assert tokens.asked == 1
    assert [each.number for each in names_of.learning([request(2, [(10, 2), (90, 1)])])] == [2]
    longer = [4 * key + i for key in (10, 11, 90) for i in range(4)]
    assert names_of.names(((90, 1),)) == page_hashes(longer, 4)[2:]


def test_pages_that_nobody_names_have_names_of_this_run_alone() -> None:
    first, second = PageNames(4, Tokens()), PageNames(4, Tokens())
    keys = ((-(1 << 62), 3),)
    assert first.names(keys) == first.names(keys)
    assert len({*first.names(keys), *second.names(keys)}) == 6
    first.learn(request(0, [(5, 1)]))
    assert first.names(((5, 1),)) == page_hashes(range(20, 24), 4)


def test_the_devices_of_a_store(tmp_path: Path, host: HostBuffer) -> None:
    before = content(host)
    store = open_store(tmp_path, host)
    names_of = PageNames(4, Tokens())
    names_of.learn(request(0, [(7, 5)]))
    reading, writing, asking = store_devices(store, names_of.names, 3)

    def steps(device: StoreDevice, operation: Copy | Lookup) -> int:
        timing = device.run(operation, Control())
        assert timing.finished_ns >= timing.started_ns
        return timing.steps

    assert steps(asking, Lookup(5, ((7, 5),))) == 0
    assert steps(writing, Copy("h2s", 3, 3 * PAGE, 1, ((0, 3),), (), ((7, 3),))) == 3
    assert steps(asking, Lookup(5, ((7, 5),))) == 3
    assert steps(reading, Copy("s2h", 5, 5 * PAGE, 1, (), ((20, 5),), ((7, 5),))) == 3
    assert content(host)[20:23] == before[:3]
    writing.close()
    asking.close()
    assert steps(reading, Copy("s2h", 1, PAGE, 1, (), ((20, 1),), ((7, 1),))) == 1
    reading.close()
    with pytest.raises(AssertionError, match="closed"):
        store.read(names(1), ((0, 1),))


def test_a_write_says_what_it_moved_and_a_read_what_others_had_written(
    tmp_path: Path, host: HostBuffer
) -> None:
    store, names_of = open_store(tmp_path, host), PageNames(4, Tokens())
    list(names_of.learning([request(0, [(7, 5)])]))
    other = open_store(tmp_path, host)
    assert other.write(((0, 2),), names_of.names(((7, 2),))) == 2
    counts = StoreCounts()
    reading, writing = store_devices(store, names_of.names, 2, counts)

    def answer(device: StoreDevice, direction, count: int) -> int:
        pages, keys = ((10, count),), ((7, count),)
        there = ((), pages) if direction == "s2h" else (pages, ())
        return device.run(Copy(direction, count, count * PAGE, 1, *there, keys), Control()).steps

    assert answer(reading, "s2h", 2) == 2
    assert answer(writing, "h2s", 4) == 2
    assert answer(writing, "h2s", 4) == 0
    assert answer(reading, "s2h", 5) == 4
    assert counts.as_table() == {
        "pages_read": 6, "pages_read_of_others": 2, "pages_written": 2, "pages_found": 6,
    }  # fmt: skip
    for each in (reading, writing, other):
        each.close()


def test_a_copy_that_stores_a_part_is_a_failure(tmp_path: Path, host: HostBuffer) -> None:
    store = open_store(tmp_path, host, limit_bytes=9 * PAGE)
    names_of = PageNames(4, Tokens())
    names_of.learn(request(0, [(7, 5)]))
    (writing,) = store_devices(store, names_of.names, 1)
    refused = [OWNER.file_name(name) for name in names_of.names(((9, 3),))]
    reserve = store.room.reserve
    store.room.reserve = lambda name, size: name not in refused and reserve(name, size)
    with pytest.raises(TransferError, match="2 of 5 pages could be stored"):
        writing.run(Copy("h2s", 5, 5 * PAGE, 1, ((0, 5),), (), ((7, 5),)), Control())
    writing.close()


def test_a_copy_that_stores_nothing_is_a_failure(tmp_path: Path, host: HostBuffer) -> None:
    store = open_store(tmp_path, host, limit_bytes=1)
    (writing,) = store_devices(store, PageNames(4, Tokens()).names, 1)
    with pytest.raises(TransferError, match="none of 2 pages could be stored"):
        writing.run(Copy("h2s", 2, 2 * PAGE, 1, ((0, 2),), (), ((7, 2),)), Control())
    writing.close()
