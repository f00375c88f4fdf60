"""One thing of a machine made slower changes its curves, and no other: real files and real copies
behind a limit, whose time a clock of its own tells, so that a busy machine changes nothing.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from stub_machine import CONFIG, Truth, built_of, measure, probes_of

import hw.transfers.device
import hw.transfers.queues
from calibrate.probes.bench import Bench, Scale
from calibrate.probes.disk import DiskProbe
from calibrate.probes.transfers import TransfersProbe
from hicache.operations import PageRuns
from hw.storage.file_store import FileStore
from scenario.geometry import load_geometry
from scenario.profile import (
    Curve,
    Profile,
    Quantity,
    Surface,
    decode_profile,
    dump_profile,
    sourced,
)

SCALE = Scale(device_tokens=2048, host_bytes=1 << 20, chunk_tokens=32, batch=2, context_tokens=48)
PAGE_BYTES = 4096
SEEK_NS, LAUNCH_NS, PIECE_NS = 5_000, 5_000, 500
SAME = 0.01  # what a latency that stays makes of the ratio of two times, and rounding


@dataclass
class Limits:
    """Bytes a second of the disk and of the link, one way; and the clock that they move."""

    read: float = 20e6
    write: float = 15e6
    link: float = 200e6
    now_ns: int = 0
    shared: bool = False  # the disk, by reads and writes

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def monotonic_ns(self) -> int:
        return self.now_ns

    def take(self, ns: float) -> None:
        with self._lock:
            self.now_ns += round(ns)

    def disk(self, rate: float, pages: PageRuns) -> None:
        size = sum(count for _, count in pages) * PAGE_BYTES
        self.take(SEEK_NS + (2.2 if self.shared else 1.0) * size * 1e9 / rate)

    def carry(self, size: int, pieces: int = 1) -> None:
        self.take(LAUNCH_NS + (pieces - 1) * PIECE_NS + size * 1e9 / self.link)


@pytest.fixture(scope="module")
def bench(tmp_path_factory) -> Iterator[Bench]:
    path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(json.dumps(CONFIG))
    made = Bench("cpu", load_geometry(str(path)), str(path), 32, scale=SCALE)
    yield made
    made.close()


def profile_of(limits: Limits, bench: Bench, folder: Path) -> Profile:
    """What a calibration makes of a machine with these limits; steps, engine and memory are those
    of a stub.
    """

    class LimitedStore(FileStore):
        def read(self, slots: PageRuns, pages: PageRuns) -> None:
            super().read(slots, pages)
            limits.disk(limits.read, slots)

        def write(self, pages: PageRuns, slots: PageRuns) -> None:
            super().write(pages, slots)
            limits.disk(limits.write, slots)

    class LimitedDevice(hw.transfers.device.TransferDevice):
        def run(self, operation: Any, control: Any, steps: Any = ()) -> Any:
            timing = super().run(operation, control, steps)
            limits.carry(operation.size_bytes, operation.extents)
            return timing._replace(setup_ns=0)

    make_queue = hw.transfers.queues.make_queue

    def limited_queue(*given: Any) -> Any:
        queue = make_queue(*given)

        def copy(target: int, source: int, size: int) -> None:
            queue.copy(target, source, size)
            limits.carry(size)

        return SimpleNamespace(copy=copy, mark=queue.mark)

    @contextmanager
    def beside(_: object) -> Iterator[None]:
        limits.shared = True
        yield
        limits.shared = False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("calibrate.probes.disk.FileStore", LimitedStore)
        patch.setattr("calibrate.probes.disk.going_on", beside)
        patch.setattr("hw.transfers.device.TransferDevice", LimitedDevice)
        patch.setattr("hw.transfers.queues.make_queue", limited_queue)
        for name in ("disk", "transfers"):
            patch.setattr(f"calibrate.probes.{name}.time", limits)
        disk = DiskProbe(str(folder), PAGE_BYTES, file_bytes=1 << 20, most_bytes=1 << 18, workers=2)
        others = [each for each in probes_of(Truth()) if each.name in ("steps", "engine", "host")]
        probes = [*others, TransfersProbe(bench, backends=("direct",)), disk]
        built = built_of(measure(probes, str(folder / "journal")))
    return decode_profile(dump_profile(built.profile).encode(), "limited")


@pytest.fixture(scope="module")
def usual(bench, tmp_path_factory) -> Profile:
    return profile_of(Limits(), bench, tmp_path_factory.mktemp("usual"))


def rates(one: Profile, other: Profile) -> dict[str, tuple[float, float]]:
    """Of the values that differ by more than SAME: the least and the largest of other / one."""
    after = dict(sourced(other))
    found: dict[str, tuple[float, float]] = {}
    for key, value in sourced(one):
        then = after[key]
        if isinstance(value, Curve | Surface):
            assert isinstance(then, Curve | Surface)
            assert [each[:-1] for each in value.points] == [each[:-1] for each in then.points], key
            pairs = [(a[-1], b[-1]) for a, b in zip(value.points, then.points, strict=True)]
        elif isinstance(value, Quantity):
            assert isinstance(then, Quantity)
            pairs = [(value.value, then.value)]
        else:
            assert value == then, key
            continue
        if any(abs(a - b) > SAME * a for a, b in pairs):
            ratios = [b / a for a, b in pairs]
            found[key] = min(ratios), max(ratios)
    return found


def test_the_limits_are_what_is_measured(usual):
    for surface, rate in (
        (usual.disk.read_bytes_per_s, 20e6),
        (usual.disk.write_bytes_per_s, 15e6),
    ):
        assert all(found == pytest.approx(rate, rel=0.02) for _, _, found in surface.points)
    assert usual.disk.read_latency_ns.value == pytest.approx(SEEK_NS, rel=0.05)
    for size, ns in usual.pcie.h2d.points:
        assert ns == pytest.approx(LAUNCH_NS + size * 5, rel=0.02)


DISK = {"read": 0.5, "write": 0.5}
LINK = (
    "pcie.h2d", "pcie.d2h", "pcie.backends.direct.h2d", "pcie.backends.direct.d2h",
    "pcie.backends.direct.h2d_scattered", "pcie.backends.direct.d2h_scattered",
)  # fmt: skip
DUPLEX = ("pcie.duplex_bytes_per_s", "pcie.backends.direct.duplex_bytes_per_s")


@pytest.mark.parametrize("way", DISK)
def test_a_slower_disk_changes_the_rate_of_that_way_alone(usual, bench, tmp_path, way):
    slower = Limits(**{way: getattr(Limits(), way) / 2})
    found = rates(usual, profile_of(slower, bench, tmp_path))
    assert set(found) == {f"disk.{way}_bytes_per_s"}
    assert found[f"disk.{way}_bytes_per_s"] == pytest.approx((0.5, 0.5), rel=0.02)


def test_half_the_link_changes_the_links_curves_alone(usual, bench, tmp_path):
    found = rates(usual, profile_of(Limits(link=100e6), bench, tmp_path))
    assert set(found) == {*LINK, *DUPLEX}
    for key in LINK:
        low, high = found[key]  # small copies are their launch
        assert 1 <= low < high <= 2.01
        assert high > 1.8
    for key in DUPLEX:
        assert 0.5 <= found[key][0] < 0.6


def test_the_same_machine_twice_is_the_same_to_the_last_digit(usual, bench, tmp_path):
    again = profile_of(Limits(), bench, tmp_path)
    assert dict(sourced(again)) == dict(sourced(usual))
