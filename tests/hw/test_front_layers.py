"""Loads layer by layer by the compiled front: each layer is read when it is there, not before."""

from __future__ import annotations

import sys
import threading

import pytest
import torch
from front_rig import LAYOUT, Rig, any_library, library, random_lists
from hypothesis import given, settings
from hypothesis import strategies as st
from test_transfers_front_backends import Alike
from transfer_pools import LISTS, pieces

from hicache.errors import TransferError
from hw.transfers.layerwise import LayerLoad
from hw.transfers.lists import expand

__all__ = ["any_library", "library"]

WAYS = ("rows", "zero_copy")


class Reader:
    """What the model's stream reads of each layer, when it comes to it."""

    def __init__(self, rig: Rig, lists) -> None:
        self._rig, (self._device, self._host) = rig, (expand(runs) for runs in lists)
        self.read: dict[int, list[torch.Tensor]] = {}

    def reads(self, layer: int) -> None:
        """It is asked to, behind what it was told to wait for."""
        self._rig.driver.then(lambda: self.read.update({layer: self._now(layer)}))

    def check(self) -> None:
        """It has read what L2 holds."""
        self._rig.driver.settle()
        assert sorted(self.read) == list(range(LAYOUT.layers))
        for layer, found in self.read.items():
            wanted = [part[layer, self._host] for part in pieces(self._rig.host)]
            assert all(map(torch.equal, found, wanted)), layer

    def _now(self, layer: int) -> list[torch.Tensor]:
        return [part[layer, self._device].clone() for part in pieces(self._rig.device)]


def load_and_read(rig: Rig, lists, order: str = "load, read") -> None:
    """By a reader that comes behind the enqueueing, or in a thread of its own before it."""
    reader = Reader(rig, lists)
    assert rig.front.read(*lists)
    layers = rig.front.begin_load(rig.plan)

    def read() -> None:
        for layer in range(LAYOUT.layers):
            assert layers.wait(layer, None)
            reader.reads(layer)

    thread = threading.Thread(target=read)
    if order == "read, load":
        thread.start()
    layers.load()
    if order == "load, read":
        read()
    else:
        thread.join()
    assert layers.finish() == 250_000
    assert all(layers.has(layer) for layer in range(LAYOUT.layers))
    reader.check()


@given(
    seed=st.integers(0, 1 << 30),
    count=st.integers(1, 13),
    way=st.sampled_from(WAYS),
    batches=st.sampled_from(["now", "before", "none"]),
)
@settings(max_examples=80, deadline=None)
def test_in_no_order_of_the_streams_a_layer_is_read_too_early(library, seed, count, way, batches):
    rig = Rig(library, LAYOUT, way, seed=seed, batches=batches)
    for again in range(2):  # events and lists are used again
        load_and_read(rig, random_lists(seed + again, count))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", LISTS)
def test_all_kinds_of_lists_come_layer_by_layer(any_library, way, name):
    if len(expand(LISTS[name][0])):
        load_and_read(Rig(any_library, LAYOUT, way), LISTS[name])


@pytest.mark.parametrize("way", WAYS)
def test_the_device_shows_a_wait_that_is_missing(library, way):
    """So the tests above can fail."""

    def load_20_times() -> None:
        for seed in range(20):
            rig = Rig(library, LAYOUT, way, seed=seed)
            rig.driver.honours_waits = False
            load_and_read(rig, random_lists(seed, 9))

    with pytest.raises(AssertionError):
        load_20_times()


@pytest.mark.parametrize("way", WAYS)
def test_a_reader_that_comes_first_waits_until_a_layer_is_enqueued(library, way):
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for seed in range(10):
            load_and_read(Rig(library, LAYOUT, way, seed=seed), random_lists(seed, 9), "read, load")
    finally:
        sys.setswitchinterval(before_s)


@pytest.mark.parametrize("way", WAYS)
def test_each_call_that_is_refused_is_named_and_lets_readers_go(library, way):
    lists = random_lists(1, 9)
    whole = Rig(library, LAYOUT, way)
    assert whole.front.read(*lists)
    whole.front.begin_load(whole.plan).load()
    names = {
        "_copy": "cuMemcpyAsync", "_copy_batch": "cuMemcpyBatchAsync", "_launch": "cuLaunchKernel",
        "_record": "cuEventRecord",
    }  # fmt: skip
    assert set(whole.driver.made) <= set(names)
    for number, made in enumerate(whole.driver.made):
        rig = Rig(library, LAYOUT, way, fails=number)
        assert rig.front.read(*lists)
        layers = rig.front.begin_load(rig.plan)
        with pytest.raises(TransferError, match=f"^{names[made]}: 1$"):
            layers.load()
        assert not layers.wait(LAYOUT.layers - 1, None)
        assert not layers.has(LAYOUT.layers - 1)
        rig.driver.fails = None
        rig.driver.settle()
        load_and_read(rig, random_lists(2, 7))  # and it goes on
        calls = rig.driver.calls
        assert layers.wait(0, None)  # of what is history nobody waits for another's events
        assert rig.driver.calls == calls


@pytest.mark.parametrize("call", ["wait", "finish"])
def test_a_wait_that_the_device_refuses_is_named(library, call):
    rig = Rig(library, LAYOUT, "rows")
    assert rig.front.read(*random_lists(1, 5))
    layers = rig.front.begin_load(rig.plan)
    layers.load()
    rig.driver.fails = rig.driver.calls
    name = "cuStreamWaitEvent" if call == "wait" else "cuStreamWriteValue32"
    with pytest.raises(TransferError, match=f"^{name}: 1$"):
        layers.wait(0, None) if call == "wait" else layers.finish()
    rig.driver.fails = None
    rig.driver.settle()


def test_a_back_end_loads_by_the_front_and_tells_its_readers(library, monkeypatch):
    rig = Rig(library, LAYOUT, "rows")
    backend = Alike(rig, "x")
    monkeypatch.setattr(backend, "_move_layers", None)  # it is not asked
    device, host = LISTS["fragmented"]
    for _ in range(2):
        reader, load = Reader(rig, (device, host)), LayerLoad(LAYOUT.layers)
        assert not load.is_loaded(0)
        assert backend.load_layers(host, device, load=load, alone=True) is load
        for layer in range(LAYOUT.layers):
            load.wait_layer(layer)
            reader.reads(layer)
        assert load.finish().device_ns == 250_000
        assert load.is_loaded(LAYOUT.layers - 1)
        reader.check()
    assert load.finish().device_ns == 250_000  # asking twice frees nothing twice
    assert not backend._lock.locked()


@pytest.mark.parametrize("call", ["load", "finish"])
def test_a_thread_that_has_called_nothing_before_loads(library, call):
    """A worker's first operation is such a load: the device's context is not current there yet."""
    rig = Rig(library, LAYOUT, "rows")
    backend, took_ns = Alike(rig, "x"), []
    device, host = LISTS["fragmented"]

    def load() -> LayerLoad:
        return backend.load_layers(host, device, alone=True)

    def work() -> None:
        took_ns.append((first.finish() if first else load().finish()).device_ns)

    first = load() if call == "finish" else None
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert took_ns == [250_000]


def test_a_load_that_fails_is_told_to_readers_by_its_reason_also_when_it_is_history(library):
    rig = Rig(library, LAYOUT, "rows", fails=7)
    backend = Alike(rig, "x")
    device, host = LISTS["fragmented"]
    load, heard = LayerLoad(LAYOUT.layers), []

    def wait() -> None:
        try:
            load.wait_layer(LAYOUT.layers - 1)
        except TransferError as error:
            heard.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    with pytest.raises(TransferError):
        backend.load_layers(host, device, load=load, alone=True)
    thread.join()
    assert backend.settled == 1
    rig.driver.fails = None
    rig.driver.settle()
    backend.load_layers(host, device, alone=True).finish()
    wait()
    reason = f"layer {LAYOUT.layers - 1} will not come: cuMemcpyBatchAsync: 1"
    assert heard == [reason, reason]
    assert not load.is_loaded(0)


@pytest.mark.parametrize("refused", ["_write", "_elapsed"])
def test_a_load_whose_end_is_refused_is_over_and_is_told_to_readers_when_it_is_history(
    library, refused
):
    """Else who waits for it would be let through by the next load's beginning, with pages that are
    still under way.
    """
    rig = Rig(library, LAYOUT, "rows")
    backend = Alike(rig, "x")
    device, host = LISTS["fragmented"]
    load = backend.load_layers(host, device, alone=True)
    rig.driver.refused = refused
    with pytest.raises(TransferError, match=r": 1$"):
        load.finish()
    assert not backend._lock.locked()
    assert rig.driver.under_way == 0
    rig.driver.refused = None
    backend.load_layers(host, device, alone=True).finish()
    with pytest.raises(TransferError, match=r"^layer 0 will not come: cu.*: 1$"):
        load.wait_layer(0)
    assert not load.is_loaded(0)


def test_a_load_that_ends_before_it_enqueues_lets_its_reader_go(library):
    rig = Rig(library, LAYOUT, "rows")
    load, heard = LayerLoad(LAYOUT.layers), []
    assert rig.front.read(*random_lists(1, 5))
    load.begin_by(rig.front.begin_load(rig.plan))

    def wait() -> None:
        with pytest.raises(TransferError) as caught:
            load.wait_layer(0)
        heard.append(str(caught.value))

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    load.fail(KeyboardInterrupt("stop"))
    thread.join(10)
    assert heard == ["layer 0 will not come: stop"]
    load_and_read(rig, random_lists(2, 7))
    load.fail(TransferError("late"))  # the next one's readers do not hear of it


def test_what_the_front_does_not_load_is_left_to_python(library):
    rig = Rig(library, LAYOUT, "zero_copy", missing=True)
    assert not rig.plan.loads_layers
    backend = Alike(rig, "x")
    backend.plan = rig.plan
    device, host = LISTS["fragmented"]
    backend.load_layers(host, device, alone=True).finish()
    assert rig.driver.calls == 0
    backend.plan = Alike(rig, "y").plan
    assert backend.load_layers((), (), alone=True).finish().device_ns >= 0
    with pytest.raises(TransferError, match="1 pages of L1 against 2 of L2"):
        backend.load_layers(((0, 2),), ((0, 1),), alone=True)
    assert rig.driver.calls == 0
    assert not backend._lock.locked()
