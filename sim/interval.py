"""What a profile's uncertainty means for a prediction: the replay again, on machines it could be.

    draw k:  each curve and number that has a spread times exp(spread * g),  g ~ N(0, 1), seeded

A factor is one for a whole curve: what a calibration does not know is mostly how fast the machine
is on another day, not how a curve wiggles. Values without a spread stay as they are and are
counted, so that an interval says what it does not cover: the engine's schedule, the trace, an
estimate's error. The same scenario, profile and number of draws give the same interval.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp
from random import Random
from typing import Any, cast

import msgspec

from hicache.errors import InputError
from scenario.measurement import quantile
from scenario.profile import Curve, Profile, Quantity, Surface, Valued, load_profile, sourced
from scenario.records import Scenario
from sim.replay import replay

DRAWS = 16
LOW, HIGH = 0.05, 0.95
# What is laid out with an interval, as in the summary.
_TABLES: dict[str, tuple[str, ...]] = {
    "ttft_ms": ("mean", "p50", "p90", "p99"),
    "tpot_ms": ("mean", "p50", "p90", "p99"),
    "e2e_ms": ("mean", "p50", "p90", "p99"),
    "throughput": ("requests_per_s", "prompt_tokens_per_s", "output_tokens_per_s"),
}


def interval(
    scenario: Scenario,
    summary: Mapping[str, object],
    draws: int = DRAWS,
) -> dict[str, Any]:
    """The prediction of `summary` with the 5 % and 95 % points of `draws` replays around it.

    Raises InputError as `check` does.
    """
    profile, spreads = check(scenario, draws)
    found: dict[str, list[float]] = {}
    for number in range(draws):
        drawn = draw(profile, Random(f"{scenario.seed}/{number}"))
        outcome = replay(scenario, profile=drawn)
        if outcome.interrupted:
            raise InputError("--interval: stopped before its replays were done")
        for name, value in _values(outcome.summary):
            found.setdefault(name, []).append(value)
    known = sum(isinstance(value, Valued) for _, value in sourced(profile))
    return {
        "draws": draws,
        "low": LOW,
        "high": HIGH,
        "values_with_spread": len(spreads),
        "values_without": known - len(spreads),
        "values": {
            name: {
                "predicted": value,
                "low": quantile(sorted(found[name]), LOW),
                "high": quantile(sorted(found[name]), HIGH),
            }
            for name, value in _values(summary)
            if name in found
        },
    }


def draw(profile: Profile, random: Random) -> Profile:
    """A machine that `profile` could be of: each value with a spread times a factor of its own."""
    return _drawn(profile, random)


def interval_lines(found: Mapping[str, Any]) -> list[str]:
    """The interval for people."""
    lines = [
        f"interval of {found['draws']} replays ({100 * LOW:.0f} % to {100 * HIGH:.0f} %), from the "
        f"spread of {found['values_with_spread']} of the profile's values; "
        f"{found['values_without']} have none"
    ]
    for name, each in found["values"].items():
        if name.endswith((".mean", ".p50", ".p99", "requests_per_s")):
            between = f"{each['low']:,.4g} .. {each['high']:,.4g}"
            lines.append(f"  {name:28} {each['predicted']:>12,.4g}   {between}")
    return lines


def check(scenario: Scenario, draws: int) -> tuple[Profile, list[str]]:
    """The profile, and the keys of its values that have a spread.

    Raises InputError where nothing can be drawn: an untimed replay, a trace that cannot be read
    twice, a profile without a spread, and for fewer than two draws.
    """
    profile = load_profile(scenario.machine.profile)
    spreads = [
        key
        for key, value in sourced(profile)
        if isinstance(value, Valued) and value.spread_permille
    ]
    if scenario.mode == "untimed":
        raise InputError("--interval: mode is untimed, so no time is predicted")
    if scenario.trace.path == "-":
        raise InputError("--interval: standard input cannot be read again; name a file")
    if draws < 2:
        raise InputError(f"--draws is {draws}: an interval takes at least 2")
    if not spreads:
        raise InputError(
            f"--interval: no value of profile {profile.name} says how far it may be off; "
            "hicache calibrate makes profiles that do"
        )
    return profile, spreads


def _drawn(part: Any, random: Random) -> Any:
    changes: dict[str, Any] = {}
    for name in part.__struct_fields__:
        value = getattr(part, name)
        if isinstance(value, Valued):
            # Drawn for every value, so that another's spread does not change this one's number.
            factor = exp(random.gauss(0.0, 1.0) * value.spread_permille / 1000)
            if value.spread_permille:
                changes[name] = _scaled(value, factor, name)
        elif isinstance(value, msgspec.Struct) and name != "measurement":
            changes[name] = _drawn(value, random)
    return msgspec.structs.replace(part, **changes) if changes else part


def _scaled(value: Valued, factor: float, name: str) -> Valued:
    if isinstance(value, Quantity):
        scaled = max(1, round(value.value * factor))
        return msgspec.structs.replace(
            value, value=min(1000, scaled) if name.endswith("_permille") else scaled
        )
    assert isinstance(value, Curve | Surface)
    points = tuple((*point[:-1], max(1, round(point[-1] * factor))) for point in value.points)
    return msgspec.structs.replace(value, points=points)


def _values(summary: Mapping[str, object]) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for table, names in _TABLES.items():
        values = summary.get(table)
        if not isinstance(values, dict):
            continue
        values = cast("dict[str, object]", values)
        for name in names:
            value = values.get(name)
            if isinstance(value, int | float):
                found.append((f"{table}.{name}", float(value)))
    return found
