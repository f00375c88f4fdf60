"""What `calibrate` saw: raw samples of each series, and how well the curves made from them hold.

A profile's values say what a simulation uses; a measurement says on what they rest, so that another
fit can be made without the machine, and so that a reader may judge. Nothing here is used by a
simulation. Times are ns, sizes bytes or tokens as the axis says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

Role = Literal["fit", "check"]


class Sample(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One point: where, and what each repetition took.

    `role`: "fit" made the curve, "check" was held out of it. `width_permille`: the 95 % interval of
    the median, as a part of it. `note`: in words, what kept it from being narrower; which samples
    were rejected, and why.
    """

    at: tuple[int, ...]
    ns: tuple[int, ...]
    role: Role = "fit"
    width_permille: int = 0
    note: str = ""

    @property
    def median_ns(self) -> float:
        """The middle of the repetitions; the mean of the two middle ones."""
        return median(self.ns)


class Fit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a series became a curve: `kind` in words, and its error at points held out of it.

    Errors are |predicted - measured| / measured in tenths of a percent, None where nothing was held
    out. `verdict`: "fits", or what is wrong.
    """

    key: str
    series: tuple[str, ...]
    kind: str
    held_out: int = 0
    median_error_permille: int | None = None
    p95_error_permille: int | None = None
    limit_permille: int = 0
    verdict: str = "fits"


class Series(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The samples of one kind of work. `axes`: what the numbers of `at` are; `how`: in words."""

    key: str
    axes: tuple[str, ...]
    how: str
    samples: tuple[Sample, ...]


class Measurement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One calibration. `facts`: machine, driver, versions. `ceilings`: what hardware does at most,
    as far as it is known. `missing`: what was not measured.
    """

    command: str
    began: str
    duration_s: int
    facts: dict[str, str]
    ceilings: dict[str, int] = {}  # msgspec copies it
    missing: tuple[str, ...] = ()
    series: tuple[Series, ...] = ()
    fits: tuple[Fit, ...] = ()


def median(values: tuple[int, ...]) -> float:
    """The middle value, or the mean of the two middle ones; there must be one."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return float(ordered[middle])
    return (ordered[middle - 1] + ordered[middle]) / 2


def quantile(ordered: Sequence[float], part: float) -> float:
    """Of ascending values, at least one: linear between them."""
    place = part * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
