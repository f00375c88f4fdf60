"""What a profile must satisfy beyond its types; errors name key, value and what is allowed."""

from __future__ import annotations

import re
from typing import Any, get_args, get_type_hints

import msgspec

from hicache.errors import InputError
from scenario.profile import (
    BackendCopies,
    Curve,
    Profile,
    Quantity,
    Sourced,
    Surface,
    Valued,
    sourced,
)

# Keys whose value divides or counts something.
_ABOVE_ZERO = (
    "memory.device_bytes", "memory.host_bytes", "pcie.duplex_bytes_per_s", "host.copy_threads",
    "disk.workers", "disk.mixed_permille", "disk.each_way",
    "disk.read_share_permille", "disk.first_write_permille", "gpu.ranks",
)  # fmt: skip
# Curves and surfaces whose samples are rates: each must be above 0.
_RATES = ("host.copy_bytes_per_s", "disk.read_bytes_per_s", "disk.write_bytes_per_s")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")
_AT = re.compile(r"^(.*?)(?: - at `\$(.*?)`)?$", re.DOTALL)


def check_profile(profile: Profile, place: str) -> None:
    """Raise InputError, beginning with `place` and the key, for values that no machine can have."""
    for key, value in sourced(profile):
        if not value.how.strip():
            raise InputError(f"{place}: {key}.how is empty: say in words how the value is known")
        if isinstance(value, Valued) and not 0 <= value.spread_permille <= 1000:
            raise InputError(
                f"{place}: {key}.spread_permille is {value.spread_permille}: it must lie between 0 "
                "and 1000"
            )
        if isinstance(value, Quantity):
            above_zero = key in _ABOVE_ZERO or key.startswith(("pcie.backends.", "interference."))
            least = 1 if above_zero else 0
            if value.value < least:
                raise InputError(
                    f"{place}: {key}.value is {value.value}: it must be {least} or more"
                )
            if key.endswith("_permille") and value.value > 1000:
                raise InputError(
                    f"{place}: {key}.value is {value.value}: it must be at most 1000, all of the "
                    "speed or work"
                )
        elif isinstance(value, Curve | Surface):
            _check_points(value.points, f"{place}: {key}.points", 1 if key in _RATES else 0)
    for name in ("auto", "staged", "zero_copy", "direct"):
        copies = getattr(profile.pcie.backends, name, None)
        if copies is not None and copies.page_bytes < 1:
            raise InputError(
                f"{place}: pcie.backends.{name}.page_bytes is {copies.page_bytes}: it must be 1 or "
                "more"
            )
        if copies is not None and copies.by_page is not None:
            _check_pages(copies, f"{place}: pcie.backends.{name}.by_page")
    for key in ("read_bytes_per_s", "write_bytes_per_s"):
        if all(concurrent != 1 for _, concurrent, _ in getattr(profile.disk, key).points):
            raise InputError(
                f"{place}: disk.{key}.points: no sample of 1 operation at once; one is needed"
            )
    _check_gpu(profile, place)


def _check_pages(copies: BackendCopies, key: str) -> None:
    assert copies.by_page is not None
    wanted = copies.by_page.sizes()
    for name in copies.by_page.__struct_fields__:
        sizes = sorted({page for page, _, _ in getattr(copies.by_page, name).points})
        if sizes[0] < 1 or copies.page_bytes in sizes:
            raise InputError(
                f"{key}.{name} has pages of {sizes} bytes: they must be 1 or more, and not the "
                f"{copies.page_bytes} of the back-end's own curves"
            )
        if tuple(sizes) != wanted:
            raise InputError(
                f"{key}.{name} has pages of {sizes} bytes and {key}.h2d of {list(wanted)}: all "
                "four must have the same"
            )


def _check_gpu(profile: Profile, place: str) -> None:
    gpu = profile.gpu
    for key in profile.gpu.model.__struct_fields__:
        value = getattr(gpu.model, key)
        if isinstance(value, int) and value < 1:
            raise InputError(f"{place}: gpu.model.{key} is {value}: it must be 1 or more")
    parts = {
        name: getattr(gpu, name) for name in ("dense", "attention_prefill", "attention_decode")
    }
    if gpu.prefill is not None:
        for name, part in parts.items():
            if part is not None:
                raise InputError(
                    f"{place}: gpu has prefill and {name}: give prefill or {', '.join(parts)}"
                )
        return
    for name, part in parts.items():
        if part is None:
            raise InputError(
                f"{place}: gpu.{name} is missing: give prefill, or all of {', '.join(parts)}"
            )


def _check_points(points: tuple[tuple[int, ...], ...], key: str, least: int) -> None:
    if not points:
        raise InputError(f"{key} is []: it must hold at least one sample")
    for index, point in enumerate(points):
        if min(point[:-1]) < 0 or point[-1] < least:
            raise InputError(
                f"{key}[{index}] is {list(point)}: sizes must be 0 or more, the sample {least} "
                "or more"
            )
        if index and point[:-1] <= points[index - 1][:-1]:
            raise InputError(
                f"{key}[{index}] is {list(point)}: samples must be in strictly increasing order, "
                f"and this one stands behind {list(points[index - 1])}"
            )


def explain(message: str, raw: Any) -> str:
    """msgspec's message about the decoded JSON `raw`, led by the key and its value."""
    found = _AT.match(message)
    assert found is not None
    reason, path = found[1], found[2] or ""
    value, kind, key = raw, Profile, ""
    for name, index in _STEP.findall(path):
        value = value[int(index)] if index else value.get(name)
        kind = None if index or kind is None else _field_type(kind, name)
        key += f"[{index}]" if index else f".{name}"
    key = key.lstrip(".")
    unknown = re.search(r"unknown field `(.*)`", reason)
    missing = re.search(r"missing required field `(.*)`", reason)
    if unknown or missing:
        name = (unknown or missing)[1]  # pyright: ignore[reportOptionalSubscript]
        dotted = f"{key}.{name}" if key else name
        if missing:
            return f"{dotted} is missing"
        from scenario.names import nearest

        fields = list(kind.__struct_fields__) if kind is not None else []
        return f"unknown key {dotted}{nearest(name, fields)}; there are {', '.join(fields)}"
    if key.endswith("provenance"):
        allowed = ", ".join(get_args(get_type_hints(Sourced)["provenance"]))
        return f"{key} is {value!r}: it must be one of {allowed}"
    shown = repr(value)
    if len(shown) > 60:
        shown = shown[:57] + "..."
    return f"{key} is {shown}: {reason[:1].lower()}{reason[1:]}"


def _field_type(kind: type[msgspec.Struct], name: str) -> type[msgspec.Struct] | None:
    hint = get_type_hints(kind).get(name)
    options = [hint, *get_args(hint)]
    return next(
        (each for each in options if isinstance(each, type) and issubclass(each, msgspec.Struct)),
        None,
    )
