"""Checks of single options, for the records that hold them: an error names the key and the value.

Refuses to know what an option means.
"""

from __future__ import annotations

from hicache.errors import InputError


def positive(key: str, value: float) -> None:
    """Raises InputError unless it is greater than 0."""
    if not value > 0:
        raise InputError(f"{key} is {value}: it must be greater than 0")


def not_negative(key: str, value: float) -> None:
    """Raises InputError if it is less than 0."""
    if not value >= 0:
        raise InputError(f"{key} is {value}: it must not be negative")


def fraction(key: str, value: float) -> None:
    """Raises InputError unless it lies between 0 and 1."""
    if not 0 <= value <= 1:
        raise InputError(f"{key} is {value}: it must lie between 0 and 1")


def watermarks(tier: str, high: float, low: float) -> None:
    """Raises InputError unless the marks of a tier are a pair, the low one not above."""
    fraction(f"{tier}_high_watermark", high)
    fraction(f"{tier}_low_watermark", low)
    if low > high:
        raise InputError(
            f"{tier}_low_watermark is {low}: eviction ahead of need goes down to it from "
            f"{tier}_high_watermark, which is {high}; it must not be above"
        )
    if high and not low:
        raise InputError(
            f"{tier}_high_watermark is {high} and {tier}_low_watermark 0: nothing would stay; "
            "set both, or neither"
        )
