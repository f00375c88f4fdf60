"""One value as TOML writes it. Reading is `tomllib`'s, tables and keys are their writers'."""

from __future__ import annotations


def toml_value(value: object) -> str:
    """A boolean, a number, or anything else as a text: a size is written as its text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    return '"' + "".join(_ESCAPES.get(char) or _escaped(char) for char in str(value)) + '"'


_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def _escaped(char: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) < 0x20 or ord(char) == 0x7F else char
