"""Keys that stand twice in one JSON object: of which only the last would count, silently.

JSON does not say what such an object means, and a decoder takes the last value. So a reader refuses
it, as far as keys are concerned that it reads. Nearly always there is none, and that is told by
counting: what has to be in each row once is there as often as there are rows. Only where counts do
not add up are keys looked at one by one. A key whose letters are written as escapes is not found.
"""

from __future__ import annotations

from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import msgspec

from traces.jsonstream import object_members


class Keys:
    """The keys of a struct, and of structs that are its fields; not of those in its lists."""

    def __init__(self, struct: type[msgspec.Struct]) -> None:
        self.within: dict[str, Keys | None] = {}
        # As they stand in the text, with quotes.
        self.needed: list[bytes] = []
        self.optional: list[bytes] = []
        for each in msgspec.structs.fields(struct):
            inner = _struct_in(each.type)
            keys = keys_of(inner) if inner is not None and inner is not struct else None
            self.within[each.encode_name] = keys
            quoted = f'"{each.encode_name}"'.encode()
            (self.needed if each.required else self.optional).append(quoted)
            if keys is not None:
                (self.needed if each.required else self.optional).extend(keys.needed)
                self.optional.extend(keys.optional)

    def may_repeat(self, text: bytes, rows: int) -> bool:
        """False: in these lines, which decoded as so many rows, no key stands twice."""
        if any(text.count(key) != rows for key in self.needed):
            return True
        present = [key for key in self.optional if key in text]
        if not present:
            return False
        lines = text.split(b"\n") if rows > 1 else (text,)
        return any(line.count(key) > 1 for key in present for line in lines)

    def repeated(self, raw: bytes) -> str:
        """The first key that stands twice in the object `raw`, with its path; "" if none does."""
        seen: set[str] = set()
        for name, value in object_members(raw):
            if name not in self.within:
                continue
            if name in seen:
                return name
            seen.add(name)
            inner = self.within[name]
            if inner is not None and (found := inner.repeated(value)):
                return f"{name}.{found}"
        return ""


@cache
def keys_of(type_: Any) -> Keys | None:
    """The keys of a decoder's type; None where it is no struct."""
    if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
        return Keys(type_)
    return None


def repeated_key(type_: Any, raw: bytes) -> str:
    """A key that stands twice in the JSON object `raw`, which decodes as `type_`; "" if none."""
    keys = keys_of(type_)
    if keys is None or not keys.may_repeat(raw, 1):
        return ""
    return keys.repeated(raw)


def _struct_in(type_: Any) -> type[msgspec.Struct] | None:
    """`type_`, or what it is besides None, if that is a struct."""
    if get_origin(type_) in (Union, UnionType):
        inner = [each for each in get_args(type_) if each is not NoneType]
        type_ = inner[0] if len(inner) == 1 else None
    return type_ if isinstance(type_, type) and issubclass(type_, msgspec.Struct) else None
