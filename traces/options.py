"""Options are frozen dataclasses of plain values; what each may be stands in a table beside them.

A bad value is an `InputError` that names the option, the value and what is allowed. No option has a
value that depends on another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from hicache.errors import InputError

# The least and the most of a number (and of each of several numbers), or the words to choose from.
Allowed = tuple[float, float] | tuple[str, ...]
Ranges = Mapping[str, Allowed]

LARGEST_SEED = (1 << 63) - 1

_KINDS = {"int": "a whole number", "float": "a number"}


def check_options(options: Any, ranges: Ranges) -> None:
    """`InputError` unless every field of the dataclass `options` is of its type and in its range.

    Fields are "int", "float", "str" (one of some words) or "tuple[int, ...]" (not empty).
    """
    for each in fields(options):
        value = getattr(options, each.name)
        kind, allowed = str(each.type), ranges[each.name]
        if kind == "str":
            if value not in allowed:
                words = " or ".join(str(word) for word in allowed)
                raise InputError(f"{each.name} is {value!r}: it must be {words}")
        elif kind.startswith("tuple"):
            if not isinstance(value, tuple) or not value:
                raise InputError(f"{each.name} is {value!r}: it must be one or more whole numbers")
            for number in value:
                _check_number(each.name, number, "int", allowed)
        else:
            _check_number(each.name, value, kind, allowed)


def _check_number(name: str, value: Any, kind: str, allowed: Allowed) -> None:
    number = isinstance(value, int if kind == "int" else int | float)
    if isinstance(value, bool) or not number or not math.isfinite(value):
        raise InputError(f"{name} is {value!r}: it must be {_KINDS[kind]}")
    least, most = allowed
    if not float(least) <= value <= float(most):
        raise InputError(f"{name} is {value}: it must lie between {least} and {most}")
