"""Back-ends, and the one that chooses among them, over the compiled front and the fake device."""

from __future__ import annotations

import pytest
import torch
from front_rig import LAYOUT, Rig, library
from transfer_pools import LISTS, pieces

from hicache.errors import TransferError
from hw.transfers.auto import Auto
from hw.transfers.direct import Direct
from hw.transfers.front_native import Plan
from hw.transfers.lists import expand
from hw.transfers.timing import Case, Timed

__all__ = ["library"]


class Alike(Direct):
    """A back-end over a front of the fake device; counts what it is told to settle."""

    def __init__(self, rig: Rig, name: str) -> None:
        super().__init__(rig.device, rig.host, queue=rig.python_queue)
        self.front, self.plan, self.name = rig.front, Plan.of("rows"), name
        self.settled = 0

    def settle(self) -> None:
        self.settled += 1


@pytest.mark.parametrize("how", ["alone", "by auto"])
def test_lists_are_read_once_before_python_copies_what_has_no_kernel(library, monkeypatch, how):
    rig = Rig(library, LAYOUT, "staged", missing=True)
    backend = Alike(rig, "x")
    backend.plan = rig.plan
    times = [Timed(1, 5, 5), Timed(13, 13 * 5, 13 * 5)]
    table = {
        Case("x", direction, busy): times
        for direction in ("h2d", "d2h")
        for busy in ("idle", "busy")
    }
    copier = Auto({"x": backend}, table) if how == "by auto" else backend  # pyright: ignore[reportArgumentType]
    device, host = LISTS["fragmented"]
    copier.copy("h2d", host, device, alone=True)  # pins L2
    if isinstance(copier, Auto):
        copier._is_pinned = True
    monkeypatch.setattr(rig.front, "read", None)  # `Front.copy` has
    wanted = [part.clone() for part in pieces(rig.device)]
    for part in pieces(rig.device):
        part.zero_()
    copier.copy("h2d", host, device, alone=True)
    pages = torch.from_numpy(expand(device))
    for part, found in zip(wanted, pieces(rig.device), strict=True):
        assert torch.equal(part[:, pages], found[:, pages])
    assert rig.driver.calls == 0
    with pytest.raises(TransferError, match="1 pages of L1 against 2 of L2"):
        copier.copy("h2d", ((0, 2),), ((0, 1),), alone=True)


def test_auto_copies_again_by_one_call_what_it_has_picked(library, monkeypatch):
    rig = Rig(library, LAYOUT, "rows")
    table = {
        Case(name, direction, busy): [Timed(1, time, time), Timed(13, 13 * time, 13 * time)]
        for direction in ("h2d", "d2h")
        for busy in ("idle", "busy")
        for name, time in (("x", 5 if busy == "idle" else 9), ("y", 7))
    }
    candidates = {name: Alike(rig, name) for name in ("x", "y")}
    auto = Auto(candidates, table)  # pyright: ignore[reportArgumentType]
    lists = LISTS["fragmented"]
    for busy, name in (("idle", "x"), ("busy", "y")):
        if busy == "busy":
            auto.traffic.enter("d2h")
        auto.copy("h2d", lists[1], lists[0], alone=True)
        with monkeypatch.context() as patch:
            patch.setattr(rig.front, "read", None)  # not asked any more
            auto.picked = ""
            assert auto.copy("h2d", lists[1], lists[0], alone=True).device_ns == 250_000
            assert auto.picked == name
    rig.driver.fails = rig.driver.calls
    with pytest.raises(TransferError):
        auto.copy("h2d", lists[1], lists[0], alone=True)
    assert [each.settled for each in candidates.values()] == [1, 1]
    rig.driver.fails = None
    rig.driver.settle()


def test_auto_picks_loads_by_layers_by_what_the_front_has_read(library, monkeypatch):
    rig = Rig(library, LAYOUT, "rows")
    table = {
        Case(name, "h2d", "idle"): [Timed(1, *times), Timed(13, 13 * times[0], 13 * times[1])]
        for name, times in (("direct", (5, 50)), ("zero_copy", (9, 9)))
    }
    auto = Auto({name: Alike(rig, name) for name in ("direct", "zero_copy")}, table)  # pyright: ignore[reportArgumentType]
    reads, read = [], rig.front.read
    with monkeypatch.context() as patch:
        patch.setattr("hw.transfers.auto.lists_of", None)  # not asked
        patch.setattr(rig.front, "read", lambda *lists: reads.append(lists) or read(*lists))
        for lists, name in (("one run", "direct"), ("fragmented", "zero_copy")):
            device, host = LISTS[lists]
            assert auto.load_layers(host, device, alone=True).finish().device_ns == 250_000
            assert auto.picked == name
            assert reads.pop() == (device, host)
            assert not reads  # once, not by who is picked again
    assert auto.load_layers((), (), alone=True).finish().setup_ns == 0
    with pytest.raises(TransferError, match="1 pages of L1 against 2 of L2"):
        auto.load_layers(((0, 2),), ((0, 1),), alone=True)


def test_auto_loads_what_lies_apart_by_who_has_a_front_for_it_where_batches_are_quickest(library):
    """`direct` hands over the same pieces then, in batches, and the front enqueues them."""
    rig = Rig(library, LAYOUT, "rows")
    table = {
        Case(name, "h2d", "idle"): [Timed(1, *times), Timed(13, 13 * times[0], 13 * times[1])]
        for name, times in (("direct", (9, 50)), ("direct_batch", (7, 7)))
    }
    candidates = {name: Alike(rig, name) for name in ("direct", "direct_batch")}
    candidates["direct_batch"].plan = None
    auto = Auto(candidates, table)  # pyright: ignore[reportArgumentType]
    for lists, name in (("one run", "direct_batch"), ("reversed", "direct")):
        device, host = LISTS[lists]
        auto.load_layers(host, device, alone=True).finish()
        assert auto.picked == name
        assert ("_copy_batch" in rig.driver.made) == (name == "direct")
