"""Mooncake's trace format: one JSON object a line, a prompt given as ids of its 512-token blocks.

    {"timestamp": 27000, "input_length": 6758, "output_length": 500, "hash_ids": [0, 14, 15, ...]}

`timestamp` is in milliseconds, never falls, and may have decimals. `hash_ids` has one id for each
block, the partly filled last one included; a file may leave that one out, and then its tokens never
hit. Other keys are ignored and blank lines skipped. Everything else is refused: an error names
file, line, field and reason. Nothing is repaired or guessed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import NoReturn

import msgspec

from hicache.errors import InputError
from hicache.requests import Request
from traces.blocks import PageCutter
from traces.facts import TraceFacts
from traces.source import Source
from traces.stream import Batch, BlockRow, ReadPlan, requests_of

# Times further from zero than this (30,000 years) are in another unit.
LATEST_MS = 10**15

_DECODER = msgspec.json.Decoder(BlockRow)
_FIELDS = BlockRow.__struct_fields__
_PLACE_IN_ROW = re.compile(r"(?P<reason>.*?) - at `\$\.?(?P<field>.*)`", re.DOTALL)
_MISSING_FIELD = re.compile(r"Object missing required field `(?P<field>\w+)`")
_PLACE_IN_LINE = re.compile(r"(?P<reason>.*) \(byte (?P<byte>\d+)\)")
_KEY = re.compile(rb'"(\w+)"\s*:')


class MooncakeReader:
    """Reads Mooncake's JSON lines."""

    name = "mooncake"
    describes = "Mooncake JSON lines (timestamp, input_length, output_length, hash_ids)"

    def recognises(self, head: bytes) -> bool:
        """Whether the first line that is not blank looks like this format, sound or not."""
        line = head.lstrip().split(b"\n", 1)[0]
        return line.startswith(b"{") and any(f'"{field}"'.encode() in line for field in _FIELDS)

    def requests(self, source: Source, plan: ReadPlan, facts: TraceFacts) -> Iterator[Request]:
        """Yield the requests of `source` in file order, filling `facts` on the way.

        A page size that does not fit is an `InputError` at once; a malformed line is one when the
        iteration reaches its piece of the file. The requests before that piece have been given out.
        """
        cutter = PageCutter(plan.block_tokens, plan.page_size_tokens, plan.pages)
        return _read(source, plan, facts, cutter)


def _read(
    source: Source, plan: ReadPlan, facts: TraceFacts, cutter: PageCutter
) -> Iterator[Request]:
    digest = hashlib.sha256()
    batches = _batches(source, plan.block_tokens, digest)
    yield from requests_of(batches, plan, facts, cutter)
    if not facts.requests:
        raise InputError(f"{source.name}: the trace is empty: not one request in it")
    facts.sha256 = digest.hexdigest()
    facts.complete = True


def _batches(source: Source, block_tokens: int, digest: hashlib._Hash) -> Iterator[Batch]:
    last_ms: int | float = -LATEST_MS
    for first_line, piece in source.pieces(digest):
        batch = _decode(source.name, first_line, piece)
        if batch.rows:
            _check(source.name, batch, block_tokens, last_ms)
            last_ms = batch.rows[-1].timestamp
            yield batch


def _decode(name: str, first_line: int, piece: bytes) -> Batch:
    """Decode a piece of whole lines at once; one by one where that fails or lines are blank."""
    # `decode_lines` takes an object that spans lines, and two on one line. Neither is there if each
    # line starts with a brace and ends with one (no object goes on behind "}\n{"), and has one row.
    num_lines = piece.count(b"\n") + (not piece.endswith(b"\n"))
    if piece.startswith(b"{") and piece.count(b"}\n{") == num_lines - 1:
        try:
            rows = _DECODER.decode_lines(piece)
        except (msgspec.DecodeError, UnicodeDecodeError):
            rows = []
        if len(rows) == num_lines:
            return Batch(rows, range(first_line, first_line + num_lines))
    rows, lines = [], []
    for number, line in enumerate(piece.split(b"\n"), first_line):
        if line and not line.isspace():
            try:
                rows.append(_DECODER.decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                _refuse_line(f"{name}, line {number}", line, error)
            lines.append(number)
    return Batch(rows, lines)


def _check(name: str, batch: Batch, block_tokens: int, last_ms: int | float) -> None:
    """What the decoder cannot see: times that fall, and ids that do not match the length."""
    for index, row in enumerate(batch.rows):
        timestamp = row.timestamp
        if not last_ms <= timestamp <= LATEST_MS:
            where = f"{name}, line {batch.lines[index]}, timestamp"
            if abs(timestamp) > LATEST_MS:
                raise InputError(f"{where}: {timestamp} is no time in milliseconds")
            raise InputError(
                f"{where}: {timestamp} is earlier than {last_ms} of the request before; "
                "requests must be in the order of their arrival"
            )
        last_ms = timestamp
        tokens, num_ids = row.input_length, len(row.hash_ids)
        if num_ids != (tokens - 1) // block_tokens + 1 and num_ids != tokens // block_tokens:
            _refuse_ids(f"{name}, line {batch.lines[index]}, hash_ids", row, batch, block_tokens)


def _refuse_ids(where: str, row: BlockRow, batch: Batch, block_tokens: int) -> NoReturn:
    tokens, num_ids = row.input_length, len(row.hash_ids)
    expected = (tokens - 1) // block_tokens + 1
    reason = (
        f"{num_ids} ids do not match input_length {tokens}, "
        f"which is {expected} block{'s' * (expected != 1)} of {block_tokens} tokens"
    )
    for other in (1 << power for power in range(17)):
        if _fits(row, other):
            alike = sum(_fits(each, other) for each in batch.rows)
            raise InputError(
                f"{where}: {reason}; perhaps the trace has another block size: "
                f"--block-size {other} fits this line and {alike} of the {len(batch.rows)} "
                "read with it"
            )
    raise InputError(f"{where}: {reason}; no block size that is a power of two fits this line")


def _fits(row: BlockRow, block_tokens: int) -> bool:
    return len(row.hash_ids) in (
        (row.input_length - 1) // block_tokens + 1,
        row.input_length // block_tokens,
    )


def _refuse_line(where: str, line: bytes, error: Exception) -> NoReturn:
    """Say what is wrong with a line that does not decode: the field, if it can be told, and why."""
    message = str(error)
    if missing := _MISSING_FIELD.search(message):
        raise InputError(f"{where}, {missing['field']}: is missing") from None
    if place := _PLACE_IN_ROW.fullmatch(message):
        raise InputError(f"{where}, {place['field']}: {_plain(place['reason'])}") from None
    if isinstance(error, msgspec.ValidationError):
        raise InputError(f"{where}: {_plain(message)}") from None
    if isinstance(error, UnicodeDecodeError):
        raise InputError(
            f"{where}: is no UTF-8 text: {error.reason} at byte {error.start}"
        ) from None
    found = _PLACE_IN_LINE.fullmatch(message)
    end = int(found["byte"]) if found else len(line)
    keys = [key for key in _KEY.finditer(line) if key.end() <= end]
    field = f", {keys[-1][1].decode()}" if keys else ""
    if "truncated" in message:
        raise InputError(f"{where}{field}: the JSON is cut off: the line ends inside it") from None
    reason = found["reason"].removeprefix("JSON is malformed: ") if found else message
    raise InputError(f"{where}{field}: is no JSON: {reason} at byte {end} of the line") from None


def _plain(reason: str) -> str:
    """msgspec's "Expected `int`, got `str`" without its marks."""
    return reason.replace("`", "").replace("Expected", "expected").replace("Object", "the object")
