"""Parts of a profile measured anew: all else stays as it was, value for value.

    hicache calibrate --only disk --into h200.json --out now.json

    h200.json --------------------- gpu, pcie, host, interference --+
    the probe `disk`, today --build_profile--> disk ----------------+--> now.json

Copies between GPUs can be added so to the profile of one GPU: samples and fits, no value.

A part goes with its series, its fits and what was missing of it. `measurement.facts` says of each
such part when it was measured and by what; all other values are as old as the profile says. A part
whose probe was stopped or failed stays as it was. Refuses to fit old samples again
(`calibrate.refit` does), and parts that a server's times stand for.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from calibrate.build import Told, build_profile
from calibrate.gpu_fit import Graphs
from calibrate.refit import with_the_untold
from calibrate.session import Measured
from hicache.errors import InputError
from scenario.geometry import ModelGeometry
from scenario.measurement import Measurement, Series
from scenario.profile import Memory, Profile

# By probe: the values that it measures, by dotted key.
PARTS: Mapping[str, tuple[str, ...]] = {
    "steps": ("gpu", "host.engine.burst_ns"),
    "engine": ("host.engine", "host.restore_overhead"),
    "transfers": ("pcie",),
    "interference": ("interference",),
    "disk": ("disk", "memory.storage_bytes"),
    "host": ("host.copy_threads", "host.copy_bytes_per_s"),
    "peers": (),
}
# A burst's time is of two probes: what one of them said before is needed for the other.
_OF_TWO_PROBES = ("steps.burst", "engine.burst")
_MACHINE = ("gpu", "cpu")


class Renewed(NamedTuple):
    """A profile with parts measured anew, and the probes whose parts stayed as they were.

    `measured`: the keys of the series that are not the old ones.
    """

    profile: Profile
    kept: tuple[str, ...]
    measured: frozenset[str]


def check_parts(only: Sequence[str]) -> None:
    """Raises InputError where `--only` names nothing that `--into` can take."""
    allowed = f"it must name what is measured anew, of {', '.join(PARTS)}"
    if not only:
        raise InputError(f"--into without --only: {allowed}")
    for name in only:
        if name not in PARTS:
            raise InputError(f"--only {name} with --into: {allowed}")


def renew(
    profile: Profile,
    measured: Measured,
    series_of: Mapping[str, Sequence[str]],
    told: Measurement,
    geometry: ModelGeometry,
    memory: Memory,
    graphs: Graphs,
    *,
    name: str,
) -> Renewed:
    """`profile`, called `name`, with what `measured` holds.

    `series_of`: by probe, the keys of all its series. `told`: when, for how long and by which
    command, and this machine's facts. `memory`: of it; the disk's room goes with the disk.
    """
    before = profile.measurement
    old = {each.key: each for each in before.series} if before is not None else {}
    both = {key: old[key] for key in _OF_TWO_PROBES if key in old} | measured.series
    built = build_profile(
        Measured(series=both),
        Told(name, profile.machine, profile.software, profile.date, profile.source),
        profile, geometry, told, memory, graphs,
    )  # fmt: skip
    made = built.profile
    unfinished = {each.split(":", 1)[0] for each in measured.missing}
    taken = [
        probe for probe in series_of
        if probe not in unfinished and not _borrows(built.borrowed, probe)
        and any(key in measured.series for key in series_of[probe])
    ]  # fmt: skip
    made = with_the_untold(made, profile)
    for key in (key for probe in taken for key in PARTS[probe]):
        profile = _with(profile, made, key)
    gone = {key for probe in taken for key in series_of[probe]}
    # Those of another plan, too: more sizes of pages, a thorough one's threads.
    heads = {key.split(".", 1)[0] for key in gone}
    gone |= {key for key in old if key.split(".", 1)[0] in heads}
    assert made.measurement is not None
    fresh = [each for each in made.measurement.fits if set(each.series) <= gone]
    kept = before or Measurement(command="", began="", duration_s=0, facts={})
    measurement = msgspec.structs.replace(
        kept,
        facts=_facts(kept.facts, told, taken, graphs),
        missing=(
            *_still_missing(kept.missing, taken),
            *(each for each in measured.missing if each.split("@", 1)[0] in gone),
        ),
        series=_series(kept.series, measured.series, gone),
        fits=(*(each for each in kept.fits if not set(each.series) & gone), *fresh),
    )
    profile = msgspec.structs.replace(profile, name=name, measurement=measurement)
    return Renewed(
        profile,
        tuple(probe for probe in series_of if probe not in taken),
        frozenset(gone & measured.series.keys()),
    )


def other_machine(profile: Profile, facts: Mapping[str, str]) -> str:
    """In what the profile's machine is not this one, in words; "" where nothing says so."""
    theirs = profile.measurement.facts if profile.measurement is not None else {}
    for key in _MACHINE:
        one, other = theirs.get(key, ""), facts.get(key, "")
        if one and other and one != other:
            return f"its {key} is {one}, this machine's {other}"
    return ""


def of_these(measurement: Measurement, keys: Container[str]) -> Measurement:
    """`measurement` with the series of these keys alone, and their fits."""
    return msgspec.structs.replace(
        measurement,
        series=tuple(each for each in measurement.series if each.key in keys),
        fits=tuple(each for each in measurement.fits if all(key in keys for key in each.series)),
    )


def parts_measured(profile: Profile) -> dict[str, str]:
    """By probe, when its values were measured, of those that are younger than the profile."""
    facts = profile.measurement.facts if profile.measurement is not None else {}
    return {
        probe: facts[_fact(probe)].split(",", 1)[0]
        for probe, values in PARTS.items()
        if values and _fact(probe) in facts
    }


def _fact(probe: str) -> str:
    return f"{probe}_measured"


def _facts(
    before: Mapping[str, str], told: Measurement, taken: Sequence[str], graphs: Graphs
) -> dict[str, str]:
    facts = dict(before)
    for probe in taken:
        facts[_fact(probe)] = f"{told.began}, in {told.duration_s} s, by {told.command}"
    if "steps" in taken and graphs.prefill_tokens:
        facts["graphs"] = ", ".join(map(str, graphs.prefill_tokens))
        facts["decode_graphs"] = ", ".join(map(str, graphs.decoders))
    return facts


def _borrows(borrowed: Sequence[str], probe: str) -> bool:
    """Whether a part of `probe`'s was not measured well enough to be made."""
    return any(_below(key, part) for key in borrowed for part in PARTS[probe])


def _below(key: str, part: str) -> bool:
    return key == part or key.startswith(f"{part}.")


def _still_missing(missing: Sequence[str], taken: Sequence[str]) -> Iterator[str]:
    """What of `missing` ("probe: why", "series@at: why", "key: from BASE") was not measured now."""
    for each in missing:
        key = each.split(":", 1)[0].split("@", 1)[0]
        if not any(_below(key, part) for probe in taken for part in (probe, *PARTS[probe])):
            yield each


def _series(
    before: Sequence[Series], fresh: Mapping[str, Series], gone: set[str]
) -> tuple[Series, ...]:
    """The fresh ones in the place of the old ones; in the order of the old, then those new."""
    made = [fresh.get(each.key) if each.key in gone else each for each in before]
    there = {each.key for each in before}
    new = [each for key, each in fresh.items() if key in gone and key not in there]
    return (*filter(None, made), *new)


def _with(target: Any, source: Any, key: str) -> Any:
    """`target` with what `source` has at the dotted `key`; where that is None, with its own: it was
    told by hand, or by runs.
    """
    name, _, rest = key.partition(".")
    mine, value = getattr(target, name), getattr(source, name)
    if rest:
        value = _with(mine, value, rest)
    elif value is None:
        value = mine
    return msgspec.structs.replace(target, **{name: value})
