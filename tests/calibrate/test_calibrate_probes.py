"""The probes themselves, on CPU tensors and Triton's interpreter: the code that a GPU runs."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from stub_machine import CONFIG, built_of, measure

from calibrate.command import run_calibration
from calibrate.kit import Options, make_kit, other_pages
from calibrate.points import Point
from calibrate.probes.bench import GPU_SCALE, Bench, Scale
from calibrate.probes.disk import DiskProbe
from calibrate.probes.engine import KINDS, EngineProbe
from calibrate.probes.host import HostProbe
from calibrate.probes.interference import InterferenceProbe
from calibrate.probes.peers import PeersProbe
from calibrate.probes.steps import BATCHES, MOST_DECODE_TOKENS, StepsProbe
from calibrate.probes.transfers import TransfersProbe
from calibrate.sampling import Rule, sample
from hicache.errors import InputError
from hw.model.graphs import Buckets
from hw.pools import DevicePool, HostPool, KvLayout
from hw.transfers.direct import Direct
from hw.transfers.lists import Extent
from scenario.geometry import load_geometry

MIB = 1 << 20
SCALE = Scale(device_tokens=512, host_bytes=1 << 20, chunk_tokens=32, batch=2, context_tokens=48)


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(json.dumps(CONFIG))
    return str(path)


@pytest.fixture(scope="module")
def bench(config):
    made = Bench("cpu", load_geometry(config), config, 8, scale=SCALE)
    yield made
    made.close()


def test_steps_of_every_kind_are_timed(bench):
    probe = StepsProbe(bench)
    probe.open()
    points = probe.points("quick")
    kinds = {each.series for each in points}
    assert kinds == {"steps.prefill", "steps.joint", "steps.decode", "steps.burst"}
    assert kinds <= set(probe.describe())
    for kind in sorted(kinds):
        point = next(each for each in points if each.series == kind)
        assert probe.sampler(point)() > 0
    assert all(sum(each.at) <= 512 for each in points if each.series == "steps.prefill")
    assert {each.role for each in points} == {"fit", "check"}


def test_decode_steps_of_every_size_are_timed_as_far_as_memory_goes():
    geometry = load_geometry("Qwen3-8B")
    probe = StepsProbe(SimpleNamespace(scale=GPU_SCALE, where=torch.device("cuda")))  # type: ignore[arg-type]
    made = [each for each in probe.points("quick") if each.series == "steps.decode"]
    fits = [each.at for each in made if each.role == "fit"]
    sizes = {*BATCHES, *(each for each in Buckets().decoders if each <= GPU_SCALE.batch)}
    assert {batch for batch, _ in fits} == sizes
    for batch in sizes:
        farthest = max(context for size, context in fits if size == batch)
        assert farthest == min(GPU_SCALE.context_tokens, MOST_DECODE_TOKENS // batch)
        # More tokens than an L1 beside this model has, of a GPU of 141 GB.
        if farthest < GPU_SCALE.context_tokens:
            assert batch * farthest * geometry.kv_bytes_per_token > 141e9 - geometry.weight_bytes
    # Held out among the long ones, too, and none beyond the fit.
    checks = [each.at for each in made if each.role == "check"]
    assert sum(context > 4096 for _, context in checks) >= 4
    assert all(batch * context <= MOST_DECODE_TOKENS for batch, context in [*fits, *checks])


def test_pages_that_there_is_no_memory_for_are_missing_with_their_number(bench):
    with pytest.raises(InputError, match="65 pages are needed, there is memory for 64"):
        bench.pages(bench.pool, 65)


def test_no_step_is_faster_than_the_memory_reads_the_weights(bench):
    probe = StepsProbe(bench, hbm_bytes_per_s=1e6)
    floor = probe.floor(Point("steps.prefill", (16, 0)))
    geometry = bench.geometry
    read = geometry.weight_bytes - 4 * geometry.vocab_size * geometry.hidden_size
    assert floor.ns == pytest.approx(read * 1e9 / 1e6)
    assert StepsProbe(bench).floor(Point("steps.prefill", (16, 0))).ns == 0


def test_copies_of_every_back_end_are_timed(bench):
    probe = TransfersProbe(bench, link_bytes_per_s=1e9)
    probe.open()
    points = probe.points("quick")
    assert {each.series for each in points} == set(probe.describe())
    seen = set()
    for point in points:
        if point.series not in seen and "staged" not in point.series:
            seen.add(point.series)
            assert probe.sampler(point)() > 0
            assert probe.floor(point).ns == pytest.approx(point.at[0])
    probe.close()
    assert len(seen) == 3 + 3 * 7


def test_copies_are_timed_in_pages_of_other_sizes_too(bench):
    probe = TransfersProbe(bench, link_bytes_per_s=1e9, backends=("direct",), other_pages=(2, 16))
    probe.open()
    points = probe.points("quick")
    assert {each.series for each in points} == set(probe.describe())
    for tokens in (2, 16):
        pool, host = bench.pools(tokens)
        page_bytes = bench.layout_of(tokens).page_bytes
        assert (pool.layout.page_size_tokens, host.layout.page_size_tokens) == (tokens, tokens)
        for way in ("h2d", "d2h"):
            for kind in ("run", "scattered"):
                mine = [
                    each for each in points if each.series == f"pcie.direct.{way}.{kind}.{tokens}"
                ]
                assert min(each.at for each in mine) == (page_bytes,)
                assert all(each.at[0] % page_bytes == 0 for each in mine)
                assert all(probe.sampler(each)() > 0 for each in mine[:2])
    lists = probe._lists(8 * bench.layout_of(2).page_bytes, "scattered", 2)
    assert [sum(count for _, count in runs) for runs in lists] == [8, 8]
    # What is copied is what lies there.
    pool, host = bench.pools(2)
    assert pool.k is not None
    pool.k.normal_()
    probe.sampler(Point("pcie.direct.d2h.run.2", (4 * bench.layout_of(2).page_bytes,)))()
    assert torch.equal(host.k[:, :4], pool.k[:, :4])
    probe.close()


def of_gpu_scale() -> SimpleNamespace:
    """A bench that only says how large things are."""
    geometry = load_geometry("Qwen3-8B")
    return SimpleNamespace(
        scale=GPU_SCALE, page_size_tokens=64, layout=KvLayout.of(geometry, 64),
        layout_of=lambda tokens: KvLayout.of(geometry, tokens),
    )  # fmt: skip


@pytest.mark.parametrize("effort", ["quick", "thorough"])
def test_a_run_is_timed_on_both_sides_of_where_direct_goes_another_way(effort):
    """Below as many pages as the model has layers it copies page by page, then layer by layer."""
    probe = TransfersProbe(of_gpu_scale(), other_pages=(1, 16, 256))  # type: ignore[arg-type]
    points = probe.points(effort)
    assert len({each.key for each in points}) == len(points)
    for tokens in (1, 16, 64, 256):
        page_bytes = 147_456 * tokens
        ends = "" if tokens == 64 else f".{tokens}"
        for name in ("auto", "direct", "staged", "zero_copy"):
            for kind in ("run", "scattered"):
                mine = {
                    each.at[0] // page_bytes: each.role
                    for each in points
                    if each.series == f"pcie.{name}.h2d.{kind}{ends}"
                }
                switches = kind == "run" and name in ("auto", "direct") and max(mine) > 36
                assert (mine.get(35), mine.get(36)) == (("fit", "fit") if switches else (None,) * 2)
                assert "check" in mine.values()
    direct = {(each.series, each.at) for each in points if each.series == "pcie.direct.h2d.run"}
    staged = {(each.series, each.at) for each in points if each.series == "pcie.staged.h2d.run"}
    assert {at for _, at in direct} - {at for _, at in staged} == {(35 * 9 * MIB,), (36 * 9 * MIB,)}


def test_where_direct_goes_another_way_is_where_the_probe_says(bench):
    pool, host = bench.pools(2)
    backend = Direct(pool, host)
    layers = pool.layout.layers
    rows = [backend.rows_of(Extent(0, 0, pages), 0, 0, layers) for pages in (3, layers, layers + 2)]
    assert [[row.height for row in each] for each in rows[1:]] == [
        [layers] * layers, [layers + 2] * layers
    ]  # fmt: skip
    assert layers == 1
    big = replace(pool.layout, layers=5)
    wide = Direct(DevicePool(big, 9, "cpu"), HostPool(big, 9))
    heights = [
        [row.height for row in wide.rows_of(Extent(0, 0, pages), 0, 0, 5)] for pages in (4, 5)
    ]
    assert heights == [[5] * 4, [5] * 5]
    pitches = [wide.rows_of(Extent(0, 0, pages), 0, 0, 5)[0].device_pitch for pages in (4, 5)]
    assert pitches == [9 * big.k_bytes, big.k_bytes]
    wide.close()


@pytest.mark.parametrize(("effort", "visits"), [("quick", 1), ("thorough", 3)])
def test_copies_are_visited_thrice_where_there_is_time(bench, effort, visits):
    assert {each.visits for each in TransfersProbe(bench).points(effort)} == {visits}
    assert {each.visits for each in PeersProbe(["cpu", "cpu"]).points(effort)} == {3}


def test_each_visit_has_other_pages(bench):
    probe = TransfersProbe(bench)
    lists = [probe._lists(8 * bench.layout.page_bytes, "scattered") for _ in range(2)]
    assert lists[0] != lists[1]


def test_what_is_timed_in_other_pages_comes_into_the_profile(bench, tmp_path):
    probe = TransfersProbe(bench, backends=("direct",), other_pages=(2,))
    built = built_of(measure([probe], str(tmp_path / "journal")))
    backends = built.profile.pcie.backends
    assert backends is not None
    assert backends.direct is not None
    assert backends.direct.page_bytes == bench.layout.page_bytes
    assert backends.direct.by_page is not None
    assert backends.direct.by_page.sizes() == (bench.layout_of(2).page_bytes,)


def test_which_pages_are_timed():
    quick = Options(out="x.json")
    assert other_pages(quick, small=False) == ()
    assert other_pages(quick._replace(effort="thorough"), small=False) == (1, 16, 256)
    assert other_pages(quick._replace(effort="thorough"), small=True) == ()
    sixteen = quick._replace(effort="thorough", page_size_tokens=16)
    assert other_pages(sixteen, small=False) == (1, 256)
    assert other_pages(quick._replace(other_pages=(16, 2)), small=True) == (16, 2)


def test_scattered_pages_are_no_neighbours(bench):
    probe = TransfersProbe(bench)
    lists = probe._lists(8 * bench.layout.page_bytes, "scattered")
    for pages in lists:
        numbers = sorted(first for first, _ in pages)
        assert all(b - a >= 2 for a, b in pairwise(numbers))


def test_pieces_are_as_long_and_as_many_as_they_should_be(bench):
    probe = TransfersProbe(bench)
    page = bench.layout.page_bytes
    pieces = {each.at for each in probe.points("quick") if each.series == "pcie.direct.h2d.pieces"}
    assert pieces
    for size, number in pieces:
        for runs in probe._pieces(size, number):
            ordered = sorted(runs)
            assert [length for _, length in ordered] == [size // page // number] * number
            assert all(a + length < b for (a, length), (b, _) in pairwise(ordered))
    with pytest.raises(InputError, match="20 pieces of 3 pages are more than the pools have"):
        probe._pieces(60 * page, 20)


def test_the_engines_own_time_is_found_in_a_live_run(bench, tmp_path):
    probe = EngineProbe(bench, str(tmp_path), requests=10)
    probe.open()
    waits = probe._waits
    assert {"prefill", "burst", "d2h", "h2s"} <= set(waits) <= set(KINDS)
    assert all(0 < each < 60e9 for kind in waits.values() for each in kind)
    assert probe.sampler(Point("engine.prefill", ()))() > 0
    assert list(tmp_path.iterdir()) == []


def test_reads_from_l3_find_their_device_idle(bench, tmp_path, monkeypatch):
    monkeypatch.setattr("calibrate.probes.engine.MOST_RUNS", 1)
    probe = EngineProbe(bench, str(tmp_path), requests=2)
    probe.open()
    found = {
        kind: sample(probe.sampler(Point(f"engine.{kind}", ())), 60, time.monotonic, Rule(0, 3, 6))
        for kind in ("s2h", "h2d")
    }
    assert [len(each.ns) for each in found.values()] == [6, 6]
    assert probe._runs == {"visits": 1, "rounds": 1}
    # What there was is kept when there is no more.
    few = sample(probe.sampler(Point("engine.h2s", ())), 60, time.monotonic, Rule(0, 3, 60, 0.0))
    assert 1 <= len(few.ns) < 60
    assert few.note.endswith("no more samples: no other h2s found its device idle in 1 runs of "
                             "visits")  # fmt: skip


def test_the_disk_is_timed_and_left_clean(tmp_path):
    probe = DiskProbe(str(tmp_path), 4096, file_bytes=1 << 20, most_bytes=1 << 16, workers=2)
    points = probe.points("thorough")
    probe.open()
    seen = set()
    for point in points:
        if point.series not in seen:
            seen.add(point.series)
            assert probe.sampler(point)() > 0
    assert seen == set(probe.describe())
    # By other numbers of threads: one file at a time, and that of so many.
    threads = [each for each in points if each.series == "disk.threads.read"]
    assert [each.at[1] for each in threads] == [1, 4, 64]
    for point in threads:
        probe.sampler(point)()
        names = [name for name in probe._stores if name.endswith(" threads")]
        assert names == [f"{point.at[1]} threads"]
        assert f"{point.at[1]} threads" in probe._stores[names[0]].describe()
    probe.close()
    assert list(tmp_path.iterdir()) == []


def test_the_largest_operation_of_the_disk_is_timed():
    for most, largest in ((3 << 16, 48), (1 << 20, 256)):
        probe = DiskProbe(None, 4096, file_bytes=16 << 20, most_bytes=most)
        for way in ("read", "write"):
            made = [each for each in probe.points("quick") if each.series == f"disk.{way}"]
            assert max(each.at[0] for each in made if each.role == "fit") == largest * 4096
            assert len({each.at for each in made}) == len(made)


def test_host_copies_are_timed():
    probe = HostProbe(None, copied_bytes=1 << 20)
    probe.open()
    points = probe.points("quick")
    assert {each.series for each in points} == {"host.copy"}
    assert all(probe.sampler(point)() > 0 for point in points)
    probe.close()


def test_interference_is_timed_both_ways(bench):
    probe = InterferenceProbe(bench)
    probe.open()
    for point in probe.points("quick"):
        assert probe.sampler(point)() > 0
    probe.close()


def test_copies_between_devices_are_timed_for_each_pair():
    probe = PeersProbe(["cpu", "cpu"])
    points = probe.points("quick")
    assert [each.at[:2] for each in points] == [(0, 1)] * 8 + [(1, 0)] * 8
    assert probe.sampler(points[0])() > 0
    probe.close()
    assert PeersProbe(["cpu"]).points("quick") == []


def test_a_kit_for_the_cpu_has_every_probe(config, tmp_path):
    options = Options(
        out=str(tmp_path / "mine.json"), model=config, device="cpu", disk=str(tmp_path),
        page_size_tokens=16,
    )  # fmt: skip
    with ExitStack() as stack:
        kit = make_kit(options, stack)
        assert [each.name for each in kit.probes] == [
            "steps", "engine", "transfers", "interference", "disk", "host"
        ]  # fmt: skip
        only = make_kit(options._replace(only=("transfers",)), stack)
        assert [each.name for each in only.probes] == ["transfers"]


def test_a_gpu_that_is_not_there_is_told(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(InputError, match="--device cuda: there is no CUDA GPU here"):
        run_calibration(Options(out=str(tmp_path / "mine.json"), device="cuda"))
