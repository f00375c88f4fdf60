"""What a prediction must hold, and whether it does.

A limit is for the size of an error; where the machine itself did not repeat better, twice the
difference of its two runs takes its place. Nothing is judged unless somebody asks.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from calibrate.validate.compare import Figure, Share
from hicache.errors import InputError
from scenario.load import read_toml
from scenario.names import nearest


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sizes of errors, in percent unless it says points; None: not judged."""

    ttft_mean: float | None = None
    ttft_p50: float | None = None
    ttft_p90: float | None = None
    ttft_p99: float | None = None
    tpot_mean: float | None = None
    e2e_mean: float | None = None
    throughput: float | None = None
    # Of each source, in percentage points of the prompt tokens; flips near zero left out.
    tokens_points: float | None = None
    # Of each source that is a tier, in percent of its tokens; flips near zero left out.
    tokens_tier: float | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"{name} is {value}: a limit must be greater than 0")


# By name: what a run below saturation must hold, and one that is saturated.
KNOWN: dict[str, Limits] = {
    "usual": Limits(
        ttft_mean=3.0, ttft_p90=6.0, ttft_p99=6.0, throughput=2.0, tokens_points=0.1,
        tokens_tier=1.0,
    ),
    "saturated": Limits(throughput=2.0),
}  # fmt: skip


class Judged(NamedTuple):
    """One limit: what was allowed in the end, and what was found (a size; None: no such value)."""

    name: str
    unit: str
    limit: float
    allowed: float
    found: float | None

    @property
    def held(self) -> bool:
        """Whether it holds; a value that there is not misses."""
        return self.found is not None and self.found <= self.allowed


def read_limits(name_or_path: str) -> Limits:
    """Limits known by name, or those of a TOML file. Raises InputError."""
    if name_or_path in KNOWN:
        return KNOWN[name_or_path]
    if not name_or_path.endswith(".toml") and not os.path.exists(name_or_path):
        raise InputError(
            f"--limits is {name_or_path!r}: no known limits{nearest(name_or_path, KNOWN)}; known "
            f"are {', '.join(KNOWN)}; for others give the path of a .toml file"
        )
    table = read_toml(name_or_path)
    for key in table:
        if key not in Limits.__struct_fields__:
            raise InputError(
                f"{name_or_path}: unknown key {key}{nearest(key, Limits.__struct_fields__)}; "
                f"allowed are {', '.join(Limits.__struct_fields__)}"
            )
    try:
        return msgspec.convert(table, Limits)
    except (msgspec.ValidationError, InputError) as error:
        raise InputError(f"{name_or_path}: {error}") from None


def judge(
    limits: Limits, figures: Mapping[str, Figure], shares: Mapping[str, Share]
) -> list[Judged]:
    """Every limit that is set against what was found. `shares`: flips near zero left out."""
    judged: list[Judged] = []
    for name in limits.__struct_fields__:
        limit: float | None = getattr(limits, name)
        if limit is None or name.startswith("tokens_"):
            continue
        figure = figures[name]
        judged.append(_against(name, "%", limit, figure.error_percent, figure.runs_percent))
    for source, share in shares.items():
        if limits.tokens_points is not None:
            judged.append(
                _against(
                    f"tokens_{source}", "points", limits.tokens_points, share.points,
                    share.runs_points,
                )
            )  # fmt: skip
        figure = share.figure
        if limits.tokens_tier is not None and source != "computed" and figure.mean:
            judged.append(
                _against(
                    f"tokens_{source}_tier", "%", limits.tokens_tier, figure.error_percent,
                    figure.runs_percent,
                )
            )  # fmt: skip
    return judged


def _against(name: str, unit: str, limit: float, error: float | None, runs: float | None) -> Judged:
    allowed = max(limit, 2 * abs(runs)) if runs is not None else limit
    return Judged(name, unit, limit, allowed, None if error is None else abs(error))


def as_table(judged: list[Judged]) -> list[dict[str, Any]]:
    """For validation.json."""
    return [
        {
            "name": each.name, "unit": each.unit, "limit": each.limit, "allowed": each.allowed,
            "found": each.found, "held": each.held,
        }
        for each in judged
    ]  # fmt: skip
