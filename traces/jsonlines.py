"""JSON lines are decoded fast, and a line that does not decode is named with its field and reason.

A whole piece of a file is decoded at once; only where that fails is it taken apart line by line.
Blank lines are passed over. Each line must be one JSON value of the decoder's type, in UTF-8: an
object that goes on over several lines, two on one line, JSON that is cut off, a key that is there
twice, and what the type does not allow are malformed. It knows no format.
"""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from traces.repeated_keys import keys_of, repeated_key
from traces.rows import BadRows

Decoded = TypeVar("Decoded")

_PLACE_IN_ROW = re.compile(r"(?P<reason>.*?) - at `(?:key in )?\$\.?(?P<field>.*)`", re.DOTALL)
_MISSING_FIELD = re.compile(r"Object missing required field `(?P<field>\w+)`")
_PLACE_IN_LINE = re.compile(r"(?P<reason>.*) \(byte (?P<byte>\d+)\)")
# Where the other half of a pair has no room before the end, the decoder says that the text is cut.
_HALF_PAIR = re.compile(rb'\\u[dD][89abAB][0-9a-fA-F]{2}"[^\\"]{0,9}$')
_KEY = re.compile(rb'"(\w+)"\s*:')

# What a decoder raises for bytes that are none of its values.
UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
# What is wrong with a key that one object has two of.
TWICE = "is there twice"


def decode_lines(
    decoder: msgspec.json.Decoder[Decoded], first_line: int, piece: bytes, bad: BadRows
) -> tuple[list[Decoded], list[int]]:
    """Decode a piece of whole lines, the first of which is number `first_line` of the file.

    Return the values and the number of the line of each. A malformed line goes to `bad`: it is an
    `InputError`, or is left out of both.
    """
    # `decode_lines` takes an object that spans lines, and two on one line. Neither is there if each
    # line starts with a brace and ends with one (no object goes on behind "}\n{"), and has one row.
    num_lines = piece.count(b"\n") + (not piece.endswith(b"\n"))
    if piece.startswith(b"{") and piece.count(b"}\n{") == num_lines - 1 and is_utf8(piece):
        try:
            rows = decoder.decode_lines(piece)
        except UNDECODABLE:
            rows = []
        keys = keys_of(decoder.type)
        if len(rows) == num_lines and not (keys and keys.may_repeat(piece, num_lines)):
            return rows, list(range(first_line, first_line + num_lines))
    rows, lines = [], []
    for number, line in enumerate(piece.split(b"\n"), first_line):
        if line and not line.isspace():
            row = decode_object(decoder, line, number, bad)
            if row is not None:
                rows.append(row)
                lines.append(number)
    return rows, lines


def decode_object(
    decoder: msgspec.json.Decoder[Decoded], raw: bytes, line: int, bad: BadRows
) -> Decoded | None:
    """Decode one object, which starts on line `line`; None if it was malformed and is left out."""
    try:
        if not raw.isascii():
            raw.decode()  # the decoder passes over what it does not keep
        value = decoder.decode(raw)
    except UNDECODABLE as error:
        bad.refuse(line, *what_is_wrong(raw, error))
        return None
    if twice := repeated_key(decoder.type, raw):
        bad.refuse(line, twice, TWICE)
        return None
    return value


def is_utf8(text: bytes) -> bool:
    """Whether `text` is sound UTF-8."""
    if text.isascii():
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def what_is_wrong(line: bytes, error: Exception) -> tuple[str, str]:
    """Field ("" where it cannot be told) and reason, for a text that raised one of UNDECODABLE."""
    message = str(error)
    if isinstance(error, RecursionError):
        return "", "is nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return "", f"is no UTF-8 text: {error.reason} at byte {error.start}"
    if missing := _MISSING_FIELD.search(message):
        place = _PLACE_IN_ROW.fullmatch(message)
        within = f"{place['field']}." if place and place["field"] else ""
        return within + missing["field"], "is missing"
    if place := _PLACE_IN_ROW.fullmatch(message):
        return place["field"], plain(place["reason"])
    if isinstance(error, msgspec.ValidationError):
        return "", plain(message)
    found = _PLACE_IN_LINE.fullmatch(message)
    end = int(found["byte"]) if found else len(line)
    keys = [key for key in _KEY.finditer(line) if key.end() <= end]
    field = keys[-1][1].decode() if keys else ""
    if "truncated" in message and _HALF_PAIR.search(line):
        return field, "a text holds half of a surrogate pair"
    if "truncated" in message:
        return field, "the JSON is cut off: the line ends inside it"
    reason = found["reason"].removeprefix("JSON is malformed: ") if found else message
    return field, f"is no JSON: {reason} at byte {end} of the line"


def plain(reason: str) -> str:
    """msgspec's "Expected `int`, got `str`" without its marks."""
    return reason.replace("`", "").replace("Expected", "expected").replace("Object", "the object")
