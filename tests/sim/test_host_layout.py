"""Layouts of L2: in how many pieces copies go, what that costs, and what is said of it."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
from simpy import Environment

from hicache.errors import InputError
from hicache.operations import Copy
from scenario.geometry import load_geometry
from scenario.load import load_scenario
from scenario.profile import load_profile
from sim.host_pieces import HostPieces
from sim.lanes import SimMachine
from sim.replay import replay

AGENTS = Path(__file__).resolve().parents[2] / "data" / "agents.jsonl"
PROFILE, GEOMETRY = load_profile("nvidia-h200"), load_geometry("Qwen3-8B")
MIB = 1 << 20


def copy(direction, pages: int = 6, extents: int = 2) -> Copy:
    return Copy(direction, pages, pages * 9 * MIB, extents)


@pytest.mark.parametrize(
    ("layout", "mode", "link", "disk"),
    [
        ("layer_first", "dma", 2 * 72, 2 * 72),
        ("layer_first", "staged", 2 * 72, 2 * 72),
        ("page_first_direct", "dma", 6 * 72, 2),
        ("page_first", "dma", 6 * 72, 2),
        ("page_first_direct", "staged", 2, 2),
        ("page_first", "kernel", 2, 2),
        ("page_head", "kernel", 2, 2),
    ],
)
def test_pieces_are_counted(layout, mode, link, disk) -> None:
    pieces = HostPieces(layout, mode, GEOMETRY.layers, 2)
    assert pieces.on_link(copy("h2d")) == link
    assert pieces.on_disk(copy("s2h")) == disk


def test_mla_has_one_part() -> None:
    assert HostPieces("layer_first", "dma", 61, 1).on_link(copy("h2d")) == 2 * 61


def took_ns(operation: Copy, layout="page_major", mode="dma") -> int:
    env = Environment(0)
    machine = SimMachine(env, PROFILE, GEOMETRY, transfer_mode=mode, host_layout=layout)
    done = []
    lanes = machine.lanes()
    pending = lanes.submit(operation)
    assert pending.callbacks is not None
    pending.callbacks.append(lambda event: done.append(event.value))
    env.run()
    return done[0].finished_ns - done[0].started_ns


@pytest.mark.parametrize("mode", ["dma", "backend", "staged"])
@pytest.mark.parametrize("direction", ["h2d", "d2h"])
def test_a_run_by_layer_takes_as_long_as_so_many_extents(direction, mode) -> None:
    """One run of pages under layer_first is what 72 extents are of page-major pages."""
    usual = took_ns(copy(direction, 90, 1), mode=mode)
    by_layer = took_ns(copy(direction, 90, 1), "layer_first", mode)
    assert by_layer == took_ns(copy(direction, 90, 72), mode=mode)
    assert by_layer >= usual
    if mode == "dma":
        assert by_layer > usual * 1.01
        every_page = took_ns(copy(direction, 90, 1), "page_first_direct")
        assert every_page == took_ns(copy(direction, 90, 90 * 72))
        assert every_page > by_layer


@pytest.mark.parametrize("direction", ["s2h", "h2s"])
def test_the_disk_reads_and_writes_where_the_pieces_lie(direction) -> None:
    usual = took_ns(copy(direction, 10, 1))
    by_layer = took_ns(copy(direction, 10, 1), "layer_first")
    assert by_layer == took_ns(copy(direction, 10, 72))
    assert by_layer != usual
    assert took_ns(copy(direction, 10, 1), "page_first_direct") == usual


@pytest.mark.parametrize("layout", ["layer_first", "page_first", "page_first_direct", "page_head"])
def test_kernels_do_not_mind(layout) -> None:
    assert took_ns(copy("h2d"), layout, "kernel") == took_ns(copy("h2d"), mode="kernel")


@pytest.fixture(scope="module")
def first_requests(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Enough of the trace that every tier is read and written."""
    path = tmp_path_factory.mktemp("layout") / "first.jsonl"
    with AGENTS.open() as rows:
        path.write_text("".join(islice(rows, 800)))
    return str(path)


def outcome(**options: object):
    given = {key.replace("__", "."): value for key, value in options.items()}
    base = {
        "trace.path": str(AGENTS), "tiers.l1": "2000pages", "tiers.l2": "3000pages",
        "restore.policy": "always", "trace.speed": 20.0,
    }  # fmt: skip
    return replay(load_scenario(None, {**base, **given}))


def test_a_whole_replay_restores_more_slowly_and_says_what_it_rests_on() -> None:
    usual, by_layer, by_page = (
        outcome(machine__transfer_mode="dma", machine__host_layout=layout).summary
        for layout in ("page_major", "layer_first", "page_first_direct")
    )
    seconds = [each["transfers"]["h2d"]["service_s"] for each in (usual, by_layer, by_page)]  # type: ignore[index]
    assert seconds[0] < seconds[1] < seconds[2]
    assert "machine.host_layout" not in str(usual["estimates"])
    for each in (by_layer, by_page):
        assert "machine.host_layout" in [one["key"] for one in each["estimates"]]  # type: ignore[union-attr]
        assert "machine.host_layout" not in str(each["warnings"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"layout": "page_first", "mode": "dma"}, "taken as page_first_direct, as in SGLang"),
        ({"layout": "page_head", "mode": "kernel"}, "has no effect: only memory copies"),
        ({"layout": "page_first_direct", "mode": "staged"}, "has no effect: only memory copies"),
        ({"layout": "layer_first", "mode": "kernel"}, "has no effect: .* L3 no disk"),
    ],
)
def test_what_makes_no_difference_is_said(first_requests, options, said) -> None:
    summary = outcome(
        trace__path=first_requests,
        machine__transfer_mode=options["mode"],
        machine__host_layout=options["layout"],
    ).summary
    assert summary["transfers"]["h2d"]["operations"] > 100  # type: ignore[index]
    (line,) = [each for each in summary["warnings"] if "host_layout" in each]  # type: ignore[union-attr]
    assert line.startswith(f"machine.host_layout is {options['layout']}")
    import re

    assert re.search(said, line)


def test_a_preset_s_layout_needs_no_excuse(first_requests) -> None:
    summary = outcome(trace__path=first_requests, preset="sglang-0.5.20").summary
    assert summary["transfers"]["h2d"]["operations"] > 100  # type: ignore[index]
    assert not [each for each in summary["warnings"] if each.startswith("machine.host_layout")]  # type: ignore[union-attr]
    assert "machine.host_layout" not in str(summary["estimates"]), "it made no difference"


def test_heads_first_cannot_be_copied_by_memory_copies() -> None:
    with pytest.raises(InputError, match=r"machine\.host_layout is page_head .* allowed here"):
        outcome(machine__transfer_mode="dma", machine__host_layout="page_head")
