"""What a profile is built on: samples, the base for what was not measured, and the fits so far.

It makes single values and curves; which of them a profile needs is for `calibrate.build` and its
neighbours to say.
"""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from calibrate.fits import fit_curve, report
from calibrate.gpu_fit import Graphs
from calibrate.session import Measured
from hicache.operations import Direction
from scenario.geometry import ModelGeometry
from scenario.measurement import Fit, Sample
from scenario.profile import Curve, Profile, Quantity, Sourced

NS = 1e9
WAYS: tuple[Direction, ...] = ("h2d", "d2h")
# Median errors at held-out points from which on a curve does not fit.
LIMITS = {"transfers": 0.03, "steps": 0.03, "disk": 0.10}
# Before the words of a value that was taken from a base: of which machine it is.
BORROWED = re.compile(r"^not measured here, from (\S+): (?:not measured here, from \S+: )*")
Value = TypeVar("Value", bound=Sourced)
Part = TypeVar("Part", bound=msgspec.Struct)


class Ground:
    """One profile in the making; `fits` and `borrowed` grow meanwhile."""

    def __init__(
        self, measured: Measured, base: Profile, geometry: ModelGeometry, graphs: Graphs
    ) -> None:
        """`geometry`: of the model whose steps were timed."""
        self.measured = measured
        self.base = base
        self.geometry = geometry
        self.graphs = graphs
        self.fits: list[Fit] = []
        self.borrowed: list[str] = []

    @property
    def server(self) -> bool:
        """Whether a server was timed, not a model here."""
        return bool(self.measured.samples("server.prefill"))

    def curve(self, key: str, series: str) -> Curve | None:
        samples = self.measured.samples(series)
        if not any(each.role == "fit" for each in samples):
            return None
        fit = fit_curve(samples)
        self.fits.append(report(key, (series,), fit.kind, fit.errors, LIMITS["transfers"]))
        how = f"{self.measured.series[series].how}; {fit.kind}"
        return Curve(
            provenance="measured",
            how=how,
            points=tuple((x, max(1, y)) for x, y in fit.points),
            spread_permille=fit.spread_permille,
        )

    def rate(self, series: str, how: str) -> Quantity | None:
        """Bytes a second from a series of one point over bytes."""
        samples = self.measured.samples(series)
        if not samples:
            return None
        rate = round(samples[-1].at[0] * NS / samples[-1].median_ns)
        return Quantity(
            provenance="measured", how=how, value=max(1, rate),
            spread_permille=noise_permille(samples[-1]),
        )  # fmt: skip

    def median(self, series: str, how: str) -> Quantity | None:
        samples = self.measured.samples(series)
        if not samples:
            return None
        return Quantity(
            provenance="measured", how=how, value=round(samples[0].median_ns),
            spread_permille=noise_permille(samples[0]),
        )  # fmt: skip

    def borrow(self, value: Value, key: str) -> Value:
        """A value of the base, as an estimate."""
        self.borrowed.append(key)
        return _borrowed(value, self.base.name)

    def borrow_all(self, part: Part, key: str) -> Part:
        """A whole part of the base, as estimates."""
        self.borrowed.append(key)
        return _all_borrowed(part, self.base.name)


def _borrowed(value: Value, base: str) -> Value:
    """A value of the base as an estimate for this machine, whomever the base has it from."""
    how = f"not measured here, from {base}: {BORROWED.sub('', value.how)}"
    return msgspec.structs.replace(value, provenance="estimate", how=how)


def _all_borrowed(part: Part, base: str) -> Part:
    changes: dict[str, object] = {}
    for name in part.__struct_fields__:
        value = getattr(part, name)
        if isinstance(value, Sourced):
            changes[name] = _borrowed(value, base)
        elif isinstance(value, msgspec.Struct):
            changes[name] = _all_borrowed(value, base)
    return msgspec.structs.replace(part, **changes)


def noise_permille(sample: Sample) -> int:
    """One standard deviation of a median: half of half its 95 % interval."""
    return max(1, min(1000, round(sample.width_permille / 2)))
