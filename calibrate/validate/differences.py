"""Requests whose prompt tokens came from other tiers in the simulation than on the machine, and
why.

    flip     the same hits, another choice of the policy: restored here, computed there
    state    other hits: the order of arrivals, evictions and writes had parted before
    timing   the same hits and choice, but more was published, or gone, until its first chunk

Most of them follow from an earlier one, so the first in the order of admissions is the one to look
at. A flip whose believed benefit lay within 10 % of zero is a coin that was thrown twice, and is
listed apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from calibrate.validate.compare import SOURCES
from calibrate.validate.runs import Asked, Played, by_request

Kind = Literal["flip", "near_zero_flip", "state", "timing"]
NEAR_ZERO = 0.10
Tokens = tuple[int, ...]


class Difference(NamedTuple):
    """One request. Tokens are by source: device, host, storage, computed.

    `in_runs`: whether the two runs on hardware differ in it, too; None with one run.
    """

    request: int
    kind: Kind
    hardware: Tokens
    simulated: Tokens
    in_runs: bool | None
    reason: str


def differences(hardware: Sequence[Played], simulated: Played) -> list[Difference]:
    """Every request whose tokens by source differ from the first run's, in the trace's order."""
    first = hardware[0]
    real, other = _sources(first), _sources(simulated)
    second = _sources(hardware[1]) if len(hardware) > 1 else None
    asked, asked_there = first.first_asked(), simulated.first_asked()
    found: list[Difference] = []
    for request in sorted(real):
        if request not in other or real[request] == other[request]:
            continue
        kind, reason = explain(asked.get(request), asked_there.get(request))
        in_runs = second.get(request) != real[request] if second is not None else None
        found.append(Difference(request, kind, real[request], other[request], in_runs, reason))
    return found


def explain(real: Asked | None, other: Asked | None) -> tuple[Kind, str]:
    """Why a request went another way, from what the policy was asked about it in both runs."""
    if real is None and other is None:
        return "timing", "no hit below L1 in either run: L1 held another part of the prompt"
    if real is None or other is None:
        there, where = (real, "on hardware") if real is not None else (other, "simulated")
        assert there is not None
        return "state", f"a hit below L1 only {where}: {_hits(there)}"
    if _hit_pages(real) != _hit_pages(other):
        return "state", f"other hits: {_hits(real)} on hardware, {_hits(other)} simulated"
    if real.goal != other.goal:
        kind: Kind = "near_zero_flip" if near_zero(real, other) else "flip"
        return kind, (
            f"another choice for the same hits: {real.reason} on hardware (benefit "
            f"{100 * real.relative_benefit:+.0f} % of computing), {other.reason} simulated "
            f"({100 * other.relative_benefit:+.0f} %)"
        )
    return "timing", (
        f"the same hits and choice ({real.reason}): pages were published, or a restore ended or "
        "failed, at another time"
    )


def near_zero(real: Asked, other: Asked) -> bool:
    """Whether the benefit was believed to be within 10 % of nothing, in either run."""
    return min(abs(real.relative_benefit), abs(other.relative_benefit)) <= NEAR_ZERO


def flips_apart(found: Sequence[Difference]) -> frozenset[int]:
    """The requests of flips near zero."""
    return frozenset(each.request for each in found if each.kind == "near_zero_flip")


def first_in_time(found: Sequence[Difference], run: Played) -> Difference | None:
    """The difference whose request was admitted first on hardware: what most others follow from."""
    arrivals = by_request(run.columns, "arrival_ns")
    queues = by_request(run.columns, "queue_ns")
    at = {each.request: arrivals[each.request] + queues[each.request] for each in found}
    return min(found, key=lambda each: (at[each.request], each.request), default=None)


def _sources(run: Played) -> dict[int, Tokens]:
    columns = [run.columns[f"{source}_tokens"] for source in SOURCES]
    return dict(zip(run.columns["request"], zip(*columns, strict=True), strict=True))


def _hit_pages(asked: Asked) -> tuple[int, int, int]:
    return asked.device, asked.host, asked.storage


def _hits(asked: Asked) -> str:
    return f"L1 {asked.device}, L2 {asked.host}, L3 {asked.storage} pages"
