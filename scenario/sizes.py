"""Tier sizes as people write them: `40GiB`, `40GB`, `2x`, `8000000tokens`, `6000pages`, `0`.

A size stays what was written (amount and unit, exact decimals, no floats) until the page size, the
model and L1 are known; `Size.pages` then gives whole pages, rounded down. A number without a unit
is refused: 40 of what? So is `40G`, which some read as 1e9 and some as 2^30 bytes.
"""

from __future__ import annotations

import re

import msgspec

from hicache.errors import InputError

# Bytes of one unit; decimal units are powers of 1000, binary ones of 1024 (IEC 80000-13).
BYTE_UNITS: dict[str, int] = {
    "B": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("kMGTP", start=1)},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGTP", start=1)},
}
WAYS_TO_WRITE = (
    "write bytes as 40GiB (2^30) or 40GB (1e9), a multiple of L1 as 2x, "
    "8000000tokens, 6000pages, or 0"
)

_NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d+(?:_\d+)*)(?:\.\d+)?|\.\d+"
_SIZE = re.compile(rf"({_NUMBER})\s*([A-Za-z]*)", re.ASCII)
_UNITS = {unit.lower(): unit for unit in BYTE_UNITS} | {
    "x": "x",
    "token": "tokens",
    "tokens": "tokens",
    "page": "pages",
    "pages": "pages",
}
_PREFIX_ALONE = re.compile(r"[kmgtp]i?", re.IGNORECASE)
_BITS = re.compile(r"[KMGTP]i?b")


class Size(msgspec.Struct, frozen=True):
    """`digits / 10**decimals` of a unit of `BYTE_UNITS`, "x" (of L1), "tokens", "pages" or "auto".

    In normal form: no trailing zeros behind the point, 0 has the unit "pages", "auto" has the
    digits 0. So two sizes are equal when they say the same thing in the same unit.
    """

    digits: int
    unit: str
    decimals: int = 0

    @property
    def is_zero(self) -> bool:
        """Whether the tier is switched off."""
        return self.digits == 0 and self.unit != "auto"

    def __str__(self) -> str:
        """The shortest text that `parse_size` reads back as this size."""
        if self.unit == "auto":
            return "auto"
        if self.digits == 0:
            return "0"
        text = str(self.digits)
        if self.decimals:
            text = text.rjust(self.decimals + 1, "0")
            text = f"{text[: -self.decimals]}.{text[-self.decimals :]}"
        return text + self.unit

    def pages(self, key: str, page_size_tokens: int, page_bytes: int, l1_pages: int = 0) -> int:
        """Whole pages this size holds, rounded down.

        `page_bytes` is the KV of one page in bytes; `l1_pages` is what a multiple refers to. `key`
        names the size in errors. Raises InputError for a size that is not 0 but holds no page. A
        size of unit "auto" depends on the machine and is not for this function.
        """
        assert self.unit != "auto"
        scale = 10**self.decimals
        if self.unit == "pages":
            return self.digits
        if self.unit == "tokens":
            pages, page = self.digits // page_size_tokens, f"{page_size_tokens} tokens"
        elif self.unit == "x":
            pages, page = self.digits * l1_pages // scale, f"1 of the {l1_pages} pages of L1"
        else:
            pages = self.digits * BYTE_UNITS[self.unit] // (scale * page_bytes)
            page = f"{page_bytes:,} bytes ({page_size_tokens} tokens)"
        if pages == 0 and self.digits:
            or_off = "or 0 to switch the tier off"
            if key == "tiers.l1":
                or_off = "L1 cannot be switched off"
            raise InputError(
                f"{key} is {self}: less than one page of {page}; make it larger, {or_off}"
            )
        return pages


AUTO = Size(0, "auto")
ZERO = Size(0, "pages")
TWICE = Size(2, "x")


def parse_size(value: object, key: str) -> Size:
    """The size that `value` says: a text, or the number 0.

    Units may be written in any case, apart from the number or not; digits may be grouped
    (`8_000_000` or `8,000,000`). Raises InputError, beginning with `key` and the value, for
    everything else.
    """
    if isinstance(value, Size):
        return value
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise InputError(f"{key} is {value!r}: not a size; {WAYS_TO_WRITE}")
    text = str(value).strip()
    if text.lower() == "auto":
        return AUTO
    if text.startswith(("-", "−")):
        raise InputError(f"{key} is {text}: a size must not be negative; {WAYS_TO_WRITE}")
    found = _SIZE.fullmatch(text)
    if found is None:
        raise InputError(f"{key} is {text!r}: not a size; {WAYS_TO_WRITE}")
    whole, _, fraction = found[1].replace(",", "").replace("_", "").partition(".")
    fraction = fraction.rstrip("0")
    digits, written_unit = int(whole + fraction or "0"), found[2]
    if not written_unit and digits:
        raise InputError(f"{key} is {text}: {text} of what? {WAYS_TO_WRITE}")
    unit = _UNITS.get(written_unit.lower(), "pages" if not written_unit else "")
    if not unit or _BITS.fullmatch(written_unit):
        raise InputError(
            f"{key} is {text!r}: {_about_unit(found[1], written_unit)}; {WAYS_TO_WRITE}"
        )
    if not digits:
        return ZERO
    if fraction and unit in ("B", "tokens", "pages"):
        raise InputError(
            f"{key} is {text}: a part of one is no size; give a whole number of {unit}"
        )
    return Size(digits, unit, len(fraction))


def size_bytes(key: str, text: str) -> int:
    """What `text` is in bytes, as `4GiB` of the option `key`. Raises InputError."""
    size = parse_size(text, key)
    if size.unit not in BYTE_UNITS or size.is_zero:
        raise InputError(f"{key} is {text}: it must be a size in bytes, such as 4GiB")
    return size.digits * BYTE_UNITS[size.unit] // 10**size.decimals


def bytes_text(size_bytes: float) -> str:
    """A number of bytes for people, in binary units with four significant digits: `110.2 GiB`."""
    for power, prefix in ((5, "Pi"), (4, "Ti"), (3, "Gi"), (2, "Mi"), (1, "Ki")):
        if abs(size_bytes) >= 1024**power:
            return f"{size_bytes / 1024**power:.4g} {prefix}B"
    return f"{size_bytes:.0f} B"


def _about_unit(number: str, written: str) -> str:
    if _BITS.fullmatch(written):
        return f"{written} means bits"
    if _PREFIX_ALONE.fullmatch(written):
        prefix = written[0].upper()
        decimal = "kB" if prefix == "K" else f"{prefix}B"
        return f"{written} is ambiguous, write {number}{decimal} or {number}{prefix}iB"
    return f"unknown unit {written!r}"
