"""What curve and plan write alike: a document that can be looked at, and a picture of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from hicache.errors import InputError
from traces.outfile import write_lines


def write_document(
    document: Mapping[str, Any], path: str, encode: Callable[[Any], bytes] = msgspec.json.encode
) -> None:
    """Write `document` as JSON, a key a line, each value as `encode` lays it out; the schema, by
    which the file is known, comes first. Raises InputError.
    """
    lines = [msgspec.json.encode(key) + b": " + encode(value) for key, value in document.items()]
    write_lines([b"{\n" + b",\n".join(lines) + b"\n}\n"], path)


def write_picture(save: Callable[[str], None], path: str) -> None:
    """Let `save` write a picture to `path`. Raises InputError where the file system refuses."""
    try:
        save(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None
