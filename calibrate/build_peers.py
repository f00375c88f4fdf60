"""Copies between GPUs: no value of a profile is made of them, but how regular they are is told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from calibrate.fits import fit_curve, report
from calibrate.ground import LIMITS, NS
from calibrate.session import Measured
from scenario.measurement import Fit, Sample
from scenario.sizes import bytes_text

SERIES = "peers.copy"
Pair = tuple[int, int]


def of_pairs(samples: Sequence[Sample]) -> dict[Pair, list[Sample]]:
    """By (source, target), samples over bytes alone; only pairs that a curve can be made of."""
    found: dict[Pair, list[Sample]] = {}
    for each in samples:
        source, target, size = each.at
        found.setdefault((source, target), []).append(msgspec.structs.replace(each, at=(size,)))
    return {
        pair: sorted(mine, key=lambda each: each.at)
        for pair, mine in sorted(found.items())
        if any(each.role == "fit" for each in mine)
    }


def peer_fits(measured: Measured) -> Iterator[Fit]:
    """One fit for each pair and way, and the rate of its largest copy."""
    for (source, target), samples in of_pairs(measured.samples(SERIES)).items():
        fit = fit_curve(samples)
        largest = samples[-1]
        rate = round(largest.at[0] * NS / largest.median_ns)
        kind = f"{fit.kind}; {bytes_text(largest.at[0])} at {bytes_text(rate)}/s"
        key = f"peers: GPU {source} to GPU {target}"
        yield report(key, (SERIES,), kind, fit.errors, LIMITS["transfers"])
