"""The link's part of a profile: plain copies, whole back-ends, and what follows from both."""

from __future__ import annotations

import re
from collections.abc import Mapping

from calibrate.fits import errors_of, report
from calibrate.ground import LIMITS, WAYS, Ground
from hicache.operations import Direction
from scenario.profile import (
    BackendCopies,
    Backends,
    Curve,
    PagedCopies,
    PcieProfile,
    Quantity,
    Surface,
)
from sim.curves import line
from sim.link_ways import PageTimes

KINDS = (("run", ""), ("scattered", "_scattered"))
BACKENDS = ("auto", "staged", "zero_copy", "direct")


def build_link(ground: Ground) -> PcieProfile:
    """Plain copies, back-ends, and what follows from both."""
    base = ground.base.pcie
    curves = {way: ground.curve(f"pcie.{way}", f"pcie.copy.{way}") for way in WAYS}
    duplex = ground.rate("pcie.copy.both", "both directions at once, each way, plain copies")
    made = {name: _backend(ground, name) for name in BACKENDS}
    backends = _backends(made) if any(made.values()) else base.backends
    if curves["h2d"] is None or curves["d2h"] is None:
        return ground.borrow_all(base, "pcie")
    zero_copy, staged = made["zero_copy"], made["staged"]
    return PcieProfile(
        h2d=curves["h2d"],
        d2h=curves["d2h"],
        duplex_bytes_per_s=duplex or ground.borrow(base.duplex_bytes_per_s, "pcie.duplex"),
        gather_scatter=_packing(staged, curves["h2d"], curves["d2h"]) if staged else None,
        zero_copy_h2d=zero_copy.h2d_scattered if zero_copy else None,
        zero_copy_d2h=zero_copy.d2h_scattered if zero_copy else None,
        backends=backends,
    )


def _backends(made: Mapping[str, BackendCopies | None]) -> Backends:
    """What was measured; a run (`hw.assembly`) has a back-end for each direction."""
    at_once = Quantity(
        provenance="measured",
        how="a run has a back-end for each direction, and each does one operation at a time "
        "(hw.assembly)",
        value=2,
    )
    return Backends(**made, at_once=at_once)


def _backend(ground: Ground, name: str) -> BackendCopies | None:
    """One back-end's four curves; None unless all were measured."""
    curves: dict[str, Curve] = {}
    for way in WAYS:
        for kind, suffix in KINDS:
            key = f"pcie.backends.{name}.{way}{suffix}"
            curve = ground.curve(key, f"pcie.{name}.{way}.{kind}")
            if curve is None:
                return None
            curves[way + suffix] = curve
    duplex = ground.rate(f"pcie.{name}.both", "both directions at once, each way, this back-end")
    if duplex is None:
        return None
    smallest = min(at for at, _ in curves["h2d_scattered"].points)
    copies = BackendCopies(
        **curves, page_bytes=smallest, duplex_bytes_per_s=duplex,
        by_page=_by_page(ground, name, smallest),
    )  # fmt: skip
    for way in WAYS:
        _judge_pieces(ground, name, way, copies)
    return copies


def _by_page(ground: Ground, name: str, page_bytes: int) -> PagedCopies | None:
    """The four surfaces over pages of other sizes than `page_bytes`: those measured in full."""
    found: dict[str, list[tuple[int, int, int]]] = {}
    hows: dict[str, str] = {}
    spread = 0
    for tokens in _other_pages(ground, name):
        series = {
            f"{way}{suffix}": f"pcie.{name}.{way}.{kind}.{tokens}"
            for way in WAYS
            for kind, suffix in KINDS
        }
        samples = {key: ground.measured.samples(of) for key, of in series.items()}
        if not all(any(each.role == "fit" for each in of) for of in samples.values()):
            continue
        mine = min(each.at[0] for each in samples["h2d_scattered"])
        if mine == page_bytes:
            continue
        curves = {
            key: ground.curve(f"pcie.backends.{name}.by_page.{key}, pages of {tokens} tokens", of)
            for key, of in series.items()
        }
        for key, curve in curves.items():
            assert curve is not None
            found.setdefault(key, []).extend((mine, x, y) for x, y in curve.points)
            hows[key] = ground.measured.series[series[key]].how
            spread = max(spread, curve.spread_permille)
    if not found:
        return None
    return PagedCopies(
        **{
            key: Surface(
                provenance="measured", how=f"{hows[key]}, and of other sizes",
                points=tuple(sorted(points)), spread_permille=spread,
            )
            for key, points in found.items()
        }
    )  # fmt: skip


def _other_pages(ground: Ground, name: str) -> list[int]:
    """Tokens of the pages that a back-end was timed with besides its own, descending."""
    of_pages = re.compile(rf"pcie\.{name}\.h2d\.run\.(\d+)$")
    found = (of_pages.match(key) for key in ground.measured.series)
    return sorted((int(each[1]) for each in found if each), reverse=True)


def _judge_pieces(ground: Ground, name: str, way: Direction, copies: BackendCopies) -> None:
    """What the simulator says of operations in a few pieces, none of which is in a curve."""
    series = f"pcie.{name}.{way}.pieces"
    samples = ground.measured.samples(series)
    if not samples:
        return
    run, scattered = getattr(copies, way), getattr(copies, f"{way}_scattered")
    times = PageTimes(copies.page_bytes, run.points, scattered.points)

    def predict(at: tuple[int, ...]) -> float:
        return max(1, int(times.ns(*at) + 0.5))

    key = f"pcie.backends.{name}.{way}: in pieces"
    kind = "between one run and all pages apart, in proportion"
    errors = errors_of(predict, samples)
    ground.fits.append(report(key, (series,), kind, errors, LIMITS["transfers"]))


def _packing(staged: BackendCopies, h2d: Curve, d2h: Curve) -> Curve | None:
    """What `staged` takes more than a plain copy of the same bytes, the mean of both ways."""
    points: list[tuple[int, int]] = []
    plain = {"h2d": line(h2d.points), "d2h": line(d2h.points)}
    for size, down in staged.h2d_scattered.points:
        up = line(staged.d2h_scattered.points).at(size)
        more = (down - plain["h2d"].at(size) + up - plain["d2h"].at(size)) / 2
        points.append((size, max(1, round(more))))
    return Curve(
        provenance="inferred",
        how="operations of the back-end staged less plain copies of the same bytes",
        points=tuple(points),
    )
