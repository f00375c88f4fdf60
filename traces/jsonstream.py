"""One big JSON array, element by element: a document of gigabytes is never in memory at once.

    [ {...}, {...}, ... ]                                key None
    {"id": 7, "requests": [ {...}, {...}, ... ], ...}    key "requests"

Only the structure is followed: brackets, strings, commas. What stands inside an element is its
reader's business, who decodes the bytes given out here; a malformed element can be left out. Where
the structure itself is broken the rest cannot be trusted, and nothing of it is read: the document
ends inside the array, an element (or all that stands beside the array) is longer than 64 MiB, a
comma is missing, a key is there twice, text follows the end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NoReturn

import msgspec

from traces.rows import BadRows

LONGEST_ELEMENT_BYTES = 64 << 20
# What a member of an object takes in memory besides its text.
MEMBER_BYTES = 200

_SPACE = re.compile(rb"[ \t\r\n]*+")
# The rest of a string, up to its closing quote or, cut off, to the end of the bytes at hand.
_IN_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
# Up to the next bracket outside of strings, or to a string that the bytes at hand cut off. Objects
# and arrays that hold none are passed over whole: most of a document is those.
_PLAIN = rb'(?:[^"\[\]{}]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")'
_TO_BRACKET = re.compile(
    rb"(?:%b|\{%b*+\}|\[%b*+\])*+" % (_PLAIN, _PLAIN, _PLAIN),
    re.DOTALL,
)
_SCALAR = re.compile(rb'[^ \t\r\n,:"\[\]{}]*+')
_OPENING = (ord("["), ord("{"))
_END = -1


def array_elements(
    chunks: Iterable[bytes],
    key: str | None,
    bad: BadRows,
    fields: dict[str, bytes] | None = None,
) -> Iterator[tuple[int, bytes]]:
    """Yield (number of the line it starts on, raw bytes) for each element of an array.

    `chunks` is the document, cut anywhere (`Source.chunks()`). The array is the document itself
    (`key` None) or the value of `key` in the object that the document is. The object's other
    values go to `fields`, undecoded, as they are passed: those before the array are there when the
    first element is given out, the rest after the last one. A broken structure is an `InputError`.
    """
    text = _Text(chunks, bad)
    if key is None:
        if text.peek() != ord("["):
            text.fail("expected an array")
        yield from text.elements()
    else:
        if text.peek() != ord("{"):
            text.fail("expected an object")
        yield from text.members(key, {} if fields is None else fields)
    if text.peek() != _END:
        text.fail("text follows the end of the JSON document")


class _Text:
    """The document around one position, which only moves forward."""

    def __init__(self, chunks: Iterable[bytes], bad: BadRows) -> None:
        self._chunks = iter(chunks)
        self._bad = bad
        self._buffer = bytearray()
        self._at = 0
        # Bytes before this place of the buffer are done with.
        self._keep = 0
        # The line of the document that the byte at `_counted` is on.
        self._line = 1
        self._counted = 0

    @property
    def line(self) -> int:
        """The line of the position, from 1."""
        self._line += self._buffer.count(b"\n", self._counted, self._at)
        self._counted = self._at
        return self._line

    def fail(self, reason: str, key: str = "") -> NoReturn:
        """Refuse the rest of the document, for what stands here and not what was expected."""
        if self.peek() == _END:
            reason = f"the JSON is cut off: {reason}, found the end of the file"
        self._bad.fatal(self.line, key, reason)

    def peek(self) -> int:
        """The next byte that is no white space, without taking it; `_END` behind the last."""
        while True:
            self._skip(_SPACE)
            self._keep = self._at
            if self._at < len(self._buffer):
                return self._buffer[self._at]
            if not self._fill():
                return _END

    def elements(self) -> Iterator[tuple[int, bytes]]:
        """The elements of the array that starts here; the position is behind it afterwards."""
        self._at += 1
        if self.peek() == ord("]"):
            self._at += 1
            return
        while True:
            self.peek()
            line = self.line
            yield line, self.value()
            if self._ends("]"):
                return

    def members(self, key: str, fields: dict[str, bytes]) -> Iterator[tuple[int, bytes]]:
        """The elements of the array under `key` of the object that starts here."""
        self._at += 1
        found = False
        fields_bytes = 0
        ended = self.peek() == ord("}")
        self._at += ended
        while not ended:
            if self.peek() != ord('"'):
                self.fail("expected a key")
            name = self._key()
            if self.peek() != ord(":"):
                self.fail("expected a colon")
            self._at += 1
            if name in fields:
                self._bad.fatal(self.line, name, "is there twice")
            if name != key:
                self.peek()
                fields[name] = value = self.value()
                fields_bytes += len(value) + len(name) + MEMBER_BYTES
                if fields_bytes > LONGEST_ELEMENT_BYTES:
                    self._bad.fatal(self.line, name, f"with those before, it is {_too_long()}")
            elif found:
                self._bad.fatal(self.line, key, "is there twice")
            elif self.peek() != ord("["):
                self.fail("expected an array", key)
            else:
                found = True
                yield from self.elements()
            ended = self._ends("}")
        if not found:
            self._bad.fatal(self.line, key, "is missing")

    def value(self) -> bytes:
        """Take the value that starts here, whatever it is, as the bytes it is written in."""
        first = self.peek()
        if first == ord('"'):
            self._at += 1
            self._end_string()
        elif first in _OPENING:
            self._end_brackets()
        else:
            while self._skip(_SCALAR) and self._fill():
                pass
            if self._at == self._keep:
                self.fail("expected a value")
        return bytes(self._buffer[self._keep : self._at])

    def _ends(self, bracket: str) -> bool:
        """Take what follows a value: False for a comma, True for the closing `bracket`."""
        following = self.peek()
        if following not in (ord(","), ord(bracket)):
            self.fail(f"expected , or {bracket}")
        self._at += 1
        return following != ord(",")

    def _key(self) -> str:
        line, raw = self.line, self.value()
        try:
            return msgspec.json.decode(raw, type=str)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._bad.fatal(line, "", "a key is no sound string")

    def _end_brackets(self) -> None:
        """Go behind the object or array that starts here."""
        self._at += 1
        depth = 1
        while depth:
            if not self._skip(_TO_BRACKET):
                byte = self._buffer[self._at]
                self._at += 1
                if byte == ord('"'):
                    self._end_string()
                else:
                    depth += 1 if byte in _OPENING else -1
            elif not self._fill():
                self._cut_off()

    def _end_string(self) -> None:
        """Go behind the string that this is a place inside of."""
        while True:
            # What stops it inside the bytes at hand is the quote, or a backslash as their last.
            if not self._skip(_IN_STRING) and self._buffer[self._at] == ord('"'):
                self._at += 1
                return
            if not self._fill():
                self._cut_off()

    def _skip(self, pattern: re.Pattern[bytes]) -> bool:
        """Go behind what `pattern`, which may match nothing, matches. True: no byte is left."""
        match = pattern.match(self._buffer, self._at)
        assert match is not None, "the patterns match the empty string"
        self._at = match.end()
        return self._at == len(self._buffer)

    def _fill(self) -> bool:
        """Add a chunk, dropping what is done with. False at the end of the document."""
        chunk = next(self._chunks, None)
        if chunk is None:
            return False
        self._line += self._buffer.count(b"\n", self._counted, self._keep)
        if self._counted > self._keep:
            self._line -= self._buffer.count(b"\n", self._keep, self._counted)
        del self._buffer[: self._keep]
        self._at -= self._keep
        self._keep = self._counted = 0
        if len(self._buffer) > LONGEST_ELEMENT_BYTES:
            self._bad.fatal(self._line, "", f"an element is {_too_long()}")
        self._buffer += chunk
        return True

    def _cut_off(self) -> NoReturn:
        # The line that the value starts on: it is what has no end.
        self._line += self._buffer.count(b"\n", self._counted, self._keep)
        self._bad.fatal(self._line, "", "the JSON is cut off: the file ends inside this value")


def _too_long() -> str:
    return f"longer than {LONGEST_ELEMENT_BYTES >> 20} MiB"


def first_object(head: bytes) -> dict[str, bytes]:
    """Keys and raw values of the first object of a text that starts with `head`, sound or not.

    It is the text itself, its first line, or the first element of an array. A value that `head`
    cuts off is given as far as it goes. Where the structure is broken, what was found before.
    """
    return dict(object_members(head))


def object_members(head: bytes) -> Iterator[tuple[str, bytes]]:
    """The same, one member after the other; a key that stands there twice comes twice."""
    at = _end(_SPACE, head, 0)
    if head[at : at + 1] == b"[":
        at = _end(_SPACE, head, at + 1)
    if head[at : at + 1] != b"{":
        return
    at = _end(_SPACE, head, at + 1)
    while head[at : at + 1] == b'"':
        start = at
        at = _value_end(head, at)
        name = head[start + 1 : at - 1].decode("utf-8", "replace")
        at = _end(_SPACE, head, at)
        if head[at : at + 1] != b":":
            return
        start = _end(_SPACE, head, at + 1)
        at = _value_end(head, start)
        yield name, head[start:at]
        at = _end(_SPACE, head, at)
        if head[at : at + 1] != b",":
            return
        at = _end(_SPACE, head, at + 1)


def _value_end(text: bytes, at: int) -> int:
    """The end of the value that starts at `at`: of `text`, if that cuts it off."""
    if text[at : at + 1] == b'"':
        return min(_end(_IN_STRING, text, at + 1) + 1, len(text))
    if text[at : at + 1] not in (b"{", b"["):
        return _end(_SCALAR, text, at)
    depth = 1
    at += 1
    while depth and at < len(text):
        at = _end(_TO_BRACKET, text, at)
        if at == len(text) or text[at] == ord('"'):
            return len(text)
        depth += 1 if text[at] in _OPENING else -1
        at += 1
    return at


def _end(pattern: re.Pattern[bytes], text: bytes, at: int) -> int:
    match = pattern.match(text, at)
    assert match is not None, "the patterns match the empty string"
    return match.end()
