"""Does the plan of a calibration fit into its time? Replayed on a made-up clock.

Each call takes what `nvidia-h200` measured for it. What is not in that profile (openings, the
engine's live runs) is guessed so that the plan which that profile was measured by takes the 181 s
that it took, with its single samples of interference and of the disk.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch")

from calibrate.command import BUDGET_S
from calibrate.kit import THOROUGH_PAGES
from calibrate.points import NO_FLOOR, Effort, Point, Probe
from calibrate.probes.bench import GPU_SCALE, Bench
from calibrate.probes.disk import DiskProbe
from calibrate.probes.engine import EngineProbe
from calibrate.probes.host import HostProbe
from calibrate.probes.interference import InterferenceProbe
from calibrate.probes.steps import (
    BETWEEN_S,
    BURST_STEPS,
    SAMPLES,
    StepsProbe,
    _bursts_between,
    _decode_s,
    _prefill_s,
)
from calibrate.probes.transfers import TransfersProbe
from calibrate.session import Measured, Session
from hw.pools import KvLayout
from scenario.geometry import load_geometry
from scenario.measurement import Sample
from scenario.profile import load_profile

GIB = 1 << 30
OPEN_S = {
    "steps": 27.0,
    "engine": 18.0,
    "transfers": 1.0,
    "interference": 0.5,
    "disk": 5.0,
    "host": 0.0,
}
LINK_BYTES_PER_S, READ, WRITE = 50e9, 1.7e9, 2.4e9


class Gpu(Bench):
    """Plans of a GPU's scale; nothing is made."""

    def layout_of(self, page_size_tokens: int) -> KvLayout:
        return KvLayout.of(self.geometry, page_size_tokens)


def probes(other_pages: tuple[int, ...] = ()) -> list[Probe]:
    bench = Gpu("cpu", load_geometry("Qwen3-8B"), "Qwen3-8B", 64, scale=GPU_SCALE)
    return [
        StepsProbe(bench), EngineProbe(bench), TransfersProbe(bench, other_pages=other_pages),
        InterferenceProbe(bench),
        DiskProbe(None, bench.layout.page_bytes, most_bytes=GIB // 2),
        HostProbe(None),
    ]  # fmt: skip


KNOWN = {
    (series.key, sample.at): sample.median_ns / 1e9
    for series in load_profile("nvidia-h200").measurement.series
    for sample in series.samples
}


def call_s(point: Point) -> float:
    """Seconds of one call."""
    series, at = point.series, point.at
    kind = series.split(".")[0]
    if series == "steps.prefill":
        return KNOWN.get((series, at), _prefill_s(*at) / SAMPLES)
    if series == "steps.decode":
        return BURST_STEPS * KNOWN.get((series, at), _decode_s(*at) / BURST_STEPS)
    if kind == "steps":
        return point.weight / SAMPLES
    if kind == "engine":
        return 0.0  # of its runs, which are its opening
    if kind == "pcie":
        return 30e-6 + at[0] / LINK_BYTES_PER_S * (4 if series.endswith("both") else 1)
    if kind == "disk":
        if series.endswith("warm"):
            return at[0] / 25e9
        rate = WRITE if "writ" in series else READ
        more = 3 if series.endswith(("_mixed", ".cold")) else 1
        return more * at[0] * (at[2] if len(at) == 3 else 1) / rate
    return 0.15 if kind == "interference" else 0.02


class Played:
    """A probe whose calls move a clock."""

    def __init__(self, probe: Probe, clock: list[float], stop_s: float) -> None:
        self.name, self._probe, self._clock, self._stop_s = probe.name, probe, clock, stop_s

    def describe(self):
        return self._probe.describe()

    def points(self, effort: Effort) -> list[Point]:
        return self._probe.points(effort)

    def open(self) -> None:
        self._clock[0] += OPEN_S[self.name]

    def sampler(self, point: Point) -> Callable[[], int]:
        took_s, calls = call_s(point), [0]
        noise = 0.05 if point.series.startswith("disk") else 0.004

        def act() -> int:
            if self._clock[0] > self._stop_s:
                raise KeyboardInterrupt
            calls[0] += 1
            self._clock[0] += took_s
            if point.series == "steps.prefill" and calls[0] > 1:
                self._clock[0] += _bursts_between(*point.at) * BETWEEN_S
            return 1 + int(1e9 * took_s * (1 + noise * (7 * calls[0] % 5 - 2)))

        return act

    def floor(self, point: Point):
        return NO_FLOOR

    def close(self) -> None:
        pass


class Kept(dict[str, Sample]):
    """A journal in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.left: dict[str, int] = {}

    def visits_left(self, key: str, visits: int) -> int:
        return self.left.get(key, visits)

    def add(self, key: str, sample: Sample, left: int = 0) -> None:
        self[key], self.left[key] = sample, left


class Nobody:
    """Is told how it goes."""

    def begin(self, points): ...
    def probe(self, name, points): ...
    def point(self, point, left_s): ...
    def done(self, points): ...
    def missing(self, what, reason): ...


def played(
    effort: Effort,
    other_pages: tuple[int, ...] = (),
    kept: Kept | None = None,
    stop_s: float = float("inf"),
) -> tuple[Measured, float]:
    """A whole session, or one that Ctrl-C ends after `stop_s`; and the seconds that it took."""
    clock = [0.0]
    measured = Session(
        [Played(each, clock, stop_s) for each in probes(other_pages)],
        kept if kept is not None else Kept(), Nobody(),  # type: ignore[arg-type]
        effort=effort, budget_s=BUDGET_S[effort], clock=lambda: clock[0],
    ).run()  # fmt: skip
    return measured, clock[0]


def counts(measured: Measured) -> dict[str, int]:
    """The fewest samples of a point, by kind."""
    least: dict[str, int] = {}
    for key, series in measured.series.items():
        kind = ".".join(key.split(".")[:2])
        mine = min(len(each.ns) for each in series.samples)
        least[kind] = min(mine, least.get(kind, mine))
    return least


def test_a_quick_calibration_ends_in_time_with_three_samples_of_what_varies():
    measured, took_s = played("quick")
    assert measured.missing == []
    assert not measured.late
    assert took_s < 175
    least = counts(measured)
    few = {kind for kind, count in least.items() if count < 3}
    # Bursts of decode and long prefills hardly vary; of the page cache no curve is made.
    assert few == {"steps.prefill", "steps.decode", "disk.cached"}
    assert least["steps.prefill"] == least["steps.decode"] == 2
    twice = [each for each in measured.series["steps.prefill"].samples if len(each.ns) < 3]
    assert all(each.median_ns > 0.15e9 for each in twice)


def test_two_more_sizes_of_pages_fit_into_a_quick_one_and_the_disk_has_less():
    measured, took_s = played("quick", (16, 1))
    assert measured.missing == []
    assert took_s < 180
    assert (
        min(len(each.ns) for each in measured.series["pcie.direct.h2d.scattered.16"].samples) >= 2
    )


def test_a_thorough_one_times_pages_of_four_sizes_and_ends_in_time():
    measured, took_s = played("thorough", THOROUGH_PAGES)
    assert measured.missing == []
    assert took_s < BUDGET_S["thorough"]
    assert min(counts(measured).values()) >= 6


def test_a_thorough_one_that_is_stopped_after_nine_minutes_ends_in_nine_more():
    kept = Kept()
    first, took_s = played("thorough", THOROUGH_PAGES, kept, stop_s=540)
    assert first.interrupted
    assert 540 <= took_s < 550
    done = len(kept)
    second, took_s = played("thorough", THOROUGH_PAGES, kept)
    assert 0 < done < len(kept)
    assert (second.missing, second.late, second.interrupted) == ([], False, False)
    assert took_s < 540
    whole, _ = played("thorough", THOROUGH_PAGES)
    assert second.series == whole.series
