"""Layers arrive one by one; whoever needs one waits for that one, and hears of a failure."""

from __future__ import annotations

import threading

import pytest
import torch
from transfer_pools import LAYOUTS, LISTS, check_copy, make_pools, pieces

from hicache.errors import TransferError
from hw.pools import DevicePool, HostPool, KvLayout
from hw.transfers.auto import BACKENDS
from hw.transfers.layerwise import LayerLoad
from hw.transfers.lists import expand
from hw.transfers.queues import HostQueue
from hw.transfers.staged import Staged
from sim.layered import staged_groups

MAKE = BACKENDS | {
    "staged_in_small_chunks": lambda device, host, driver: Staged(
        device, host, chunk_bytes=2 * host.page_bytes, layer_groups=2
    )
}


@pytest.mark.parametrize("layout", ["mla_fp8", "odd_fp8"])
@pytest.mark.parametrize("name", MAKE)
def test_a_load_by_layers_brings_what_a_whole_load_brings(name, layout):
    backend = MAKE[name](*make_pools(LAYOUTS[layout]), None)
    for device, host in LISTS.values():
        wanted = pieces(backend.device_pool)
        for there, here in zip(wanted, pieces(backend.host_pool), strict=True):
            there[:, expand(device)] = here[:, expand(host)]
        load = backend.load_layers(host, device)
        for layer in range(LAYOUTS[layout].layers):
            load.wait_layer(layer)
            assert load.is_loaded(layer)
        assert load.finish().device_ns >= 0
        assert all(map(torch.equal, pieces(backend.device_pool), wanted))
    check_copy(backend, "d2h", LISTS["fragmented"])  # it is free again


@pytest.mark.parametrize("layers", [1, 7, 36])
@pytest.mark.parametrize("page_tokens", [1, 2, 4, 16])
def test_the_simulator_knows_the_groups_of_a_staged_load(layers, page_tokens, monkeypatch):
    layout = KvLayout(
        layers=layers, kv_heads=8, head_dim_k=128, head_dim_v=128,
        page_size_tokens=page_tokens, dtype="bf16",
    )  # fmt: skip
    told = []
    monkeypatch.setattr(LayerLoad, "loaded", lambda self, count=1: told.append(count))
    monkeypatch.setattr(LayerLoad, "end", lambda self, release, setup_ns: release())
    backend = Staged(DevicePool(layout, 2, "cpu"), HostPool(layout, 2))
    backend.load_layers(((0, 2),), ((0, 2),))
    assert sum(told) == layers
    assert len(told) == staged_groups(layers, layout.page_bytes)


@pytest.mark.parametrize(("name", "steps"), [("zero_copy", 4), ("direct", 4), ("staged", 2)])
def test_layers_come_in_order_and_none_before_its_bytes(name, steps, monkeypatch):
    backend = (
        Staged(*make_pools(LAYOUTS["mla_fp8"]), layer_groups=2)
        if name == "staged"
        else MAKE[name](*make_pools(LAYOUTS["mla_fp8"]), None)
    )
    device, host = LISTS["fragmented"]
    wanted = pieces(backend.host_pool)[0][:, expand(host)]
    seen = []

    def loaded(self, count=1):
        there = pieces(backend.device_pool)[0][:, expand(device)]
        seen.append([layer for layer in range(4) if torch.equal(there[layer], wanted[layer])])
        whole(self, count)

    whole = LayerLoad.loaded
    monkeypatch.setattr(LayerLoad, "loaded", loaded)
    backend.load_layers(host, device).finish()
    assert seen == [list(range(4 // steps * (step + 1))) for step in range(steps)]


def test_a_reader_waits_for_the_layer_that_it_needs_and_for_no_other():
    freed = threading.Event()
    load = LayerLoad(3)
    load.begin(HostQueue())
    read: list[int] = []

    def reader():
        for layer in range(3):
            load.wait_layer(layer)
            read.append(layer)

    thread = threading.Thread(target=reader)
    thread.start()
    for layer in range(3):
        assert not load.is_loaded(layer)
        assert read == list(range(layer))  # it cannot have gone on
        load.loaded()
        while len(read) <= layer and thread.is_alive():
            thread.join(0.01)
        assert read == list(range(layer + 1))
    load.end(freed.set, 5)
    thread.join()
    assert not freed.is_set()
    assert load.finish().setup_ns == 5
    assert freed.is_set()
    assert load.finish().setup_ns == 5  # asking twice frees nothing twice


def test_a_load_that_fails_wakes_its_readers_and_frees_the_back_end(monkeypatch):
    backend = MAKE["direct"](*make_pools(LAYOUTS["gqa_bf16"]), None)
    calls: list[int] = []
    heard: list[TransferError] = []
    load = LayerLoad(LAYOUTS["gqa_bf16"].layers)

    def refuse(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise TransferError("the device refuses")

    monkeypatch.setattr(backend.queue, "copy_rows", refuse)

    def wait():
        try:
            load.wait_layer(2)
        except TransferError as error:
            heard.append(error)

    reader = threading.Thread(target=wait)
    reader.start()
    with pytest.raises(TransferError, match="refuses"):
        backend.load_layers(((0, 5),), ((0, 5),), load=load)
    reader.join(10)
    assert [str(error) for error in heard] == ["layer 2 will not come: the device refuses"]
    monkeypatch.undo()
    check_copy(backend, "h2d", LISTS["whole pool"])
