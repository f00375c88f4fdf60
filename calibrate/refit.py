"""A profile made anew from its own raw samples: newer fits, without the machine.

What was measured is fitted again; what was borrowed from a base stays borrowed, and what samples
cannot tell (names, dates, sizes of memory, facts) is kept. Refuses to measure, and to refit what
was put together without samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import msgspec

from calibrate.build import Built, Told, build_profile
from calibrate.gpu_fit import Graphs
from calibrate.ground import BORROWED
from calibrate.session import Measured
from hicache.errors import InputError
from scenario.geometry import ModelGeometry, load_geometry
from scenario.measurement import Measurement
from scenario.profile import Profile, SampledModel, Sourced

# Of the decode steps of profiles that do not name them.
_USUAL_DECODERS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_TOLD_OF_DISKS = ("first_write_permille",)
Part = TypeVar("Part", bound=msgspec.Struct)


def refit(profile: Profile, place: str, model: str = "") -> Built:
    """`profile` fitted again by this version; `place` names it in errors.

    `model`: that of its steps, a name or a config.json, where the profile's name for it is none
    that is known. Raises InputError for a profile without samples, for an unknown model, and for
    one of another shape than the steps were timed with.
    """
    measurement = profile.measurement
    if measurement is None or not measurement.series:
        raise InputError(
            f"{place}: it holds no raw samples, only values; hicache calibrate makes one that does"
        )
    base = _base(profile)
    mine = f": from {base.name}"
    built = build_profile(
        Measured(
            series={each.key: each for each in measurement.series},
            missing=[each for each in measurement.missing if not each.endswith(mine)],
        ),
        Told(profile.name, profile.machine, profile.software, profile.date, profile.source),
        base,
        _geometry(profile, place, model),
        msgspec.structs.replace(measurement, series=(), fits=()),
        profile.memory,
        _graphs(measurement),
    )
    return built._replace(profile=with_the_untold(built.profile, profile))


def with_the_untold(made: Profile, profile: Profile) -> Profile:
    """`made` with the disk's values that have no samples here: runs told them, not a probe."""
    told: dict[str, object] = {
        name: getattr(profile.disk, name)
        for name in _TOLD_OF_DISKS
        if getattr(made.disk, name) is None
    }
    return msgspec.structs.replace(made, disk=msgspec.structs.replace(made.disk, **told))


def refit_lines(before: Profile, built: Built) -> Iterator[str]:
    """How well the new fits hold, and what they changed."""
    from calibrate.profile_text import diff_lines, fit_lines

    after = built.profile
    assert after.measurement is not None
    yield from fit_lines(after.measurement)
    for key in built.borrowed:
        yield f"not measured: {key}"
    yield ""
    yield from diff_lines(before, msgspec.structs.replace(after, name=f"{after.name} (refitted)"))


def _geometry(profile: Profile, place: str, model: str) -> ModelGeometry:
    """The model of the steps. The GPU's part may be borrowed; then it is not asked for."""
    geometry = load_geometry(model or profile.gpu.model.name)
    ours = SampledModel.of(geometry, "measured", profile.gpu.model.how)
    for key in ours.__struct_fields__:
        theirs = getattr(profile.gpu.model, key)
        if key not in ("name", "provenance", "how") and getattr(ours, key) != theirs:
            raise InputError(
                f"{place}: its steps were timed with a model whose {key} is {theirs:,}, and "
                f"{geometry.name} has {getattr(ours, key):,}; name theirs with --model"
            )
    return geometry


def _graphs(measurement: Measurement) -> Graphs:
    """The sizes of graphs that steps ran as."""
    facts = measurement.facts
    if "graphs" not in facts:
        return Graphs()
    decoders = _numbers(facts["decode_graphs"]) if "decode_graphs" in facts else _USUAL_DECODERS
    return Graphs(_numbers(facts["graphs"]), decoders)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(","))


def _base(profile: Profile) -> Profile:
    """Where what was not measured comes from: the values that the profile has of it already."""
    names: list[str] = []
    plain = _unborrowed(profile, names)
    return msgspec.structs.replace(plain, name=names[0]) if names else plain


def _unborrowed(part: Part, names: list[str]) -> Part:
    """`part` with its borrowed values as the base has them; `names` takes the bases' names."""
    changes: dict[str, object] = {}
    for name in part.__struct_fields__:
        value = getattr(part, name)
        if isinstance(value, Sourced):
            found = BORROWED.match(value.how)
            if found is not None:
                names.append(found[1])
                changes[name] = msgspec.structs.replace(value, how=value.how[found.end() :])
        elif isinstance(value, msgspec.Struct) and not isinstance(value, Measurement):
            changes[name] = _unborrowed(value, names)
    return msgspec.structs.replace(part, **changes)
