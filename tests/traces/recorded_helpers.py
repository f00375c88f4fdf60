"""What the tests of readers of recorded logs share: reading at once, refusals, naive hits."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from trace_helpers import REPOSITORY

from hicache.errors import InputError
from traces.rows import BadRows, ReadOptions, Row, RowStream
from traces.source import Source

REAL_TRACES = REPOSITORY.parent / "shared" / "traces"
NO_OPTIONS = ReadOptions()

needs_real_traces = pytest.mark.skipif(
    not REAL_TRACES.exists(), reason="the real traces are not beside this checkout"
)


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def rows_of(stream: RowStream) -> list[Row]:
    rows: list[Row] = []
    for batch in stream.batches():
        assert len(batch.rows) == len(batch.lines) > 0
        rows += batch.rows
    return rows


def opened(reader: Any, path: Path, options: ReadOptions = NO_OPTIONS) -> RowStream:
    source = Source(path)
    assert reader.recognises(source.head())
    return reader.open(source, options, BadRows(source.name))


def read(reader: Any, path: Path, options: ReadOptions = NO_OPTIONS) -> list[Row]:
    return rows_of(opened(reader, path, options))


def read_skipping(reader: Any, path: Path) -> tuple[list[Row], BadRows]:
    source = Source(path)
    bad = BadRows(source.name, skip=True)
    return rows_of(reader.open(source, NO_OPTIONS, bad)), bad


def refusal(reader: Any, path: Path, options: ReadOptions = NO_OPTIONS) -> str:
    """The one-line message of the `InputError` that reading ends in, without the path."""
    source = Source(path)
    with pytest.raises(InputError) as caught:
        rows_of(reader.open(source, options, BadRows(source.name)))
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message.replace(str(path), "FILE")


def ideal_hit_rate(rows: Iterable[Row]) -> float:
    """Ids whose whole prefix an earlier prompt had, over all ids; a dict of whole prefixes."""
    number_of: dict[tuple[int, int], int] = {}
    hits = total = 0
    for row in rows:
        before, known = -1, True
        for each in row.hash_ids:
            known = known and (before, each) in number_of
            hits += known
            before = number_of.setdefault((before, each), len(number_of))
        total += len(row.hash_ids)
    return hits / total


def check_rows(rows: list[Row], block_tokens: int) -> None:
    """What holds of the rows of any reader, as far as these formats have it."""
    latest = 0.0
    for number, row in enumerate(rows):
        assert row.timestamp is not None
        assert row.timestamp >= latest
        latest = row.timestamp
        assert -1 <= row.after < number
        assert row.delay >= 0
        assert all(0 <= each < 1 << 62 for each in row.hash_ids)
        if row.lengths is not None:
            assert len(row.lengths) == len(row.hash_ids)
            assert min(row.lengths) > 0
            assert sum(row.lengths) == row.input_length
        elif block_tokens:
            assert len(row.hash_ids) * block_tokens > row.input_length - block_tokens
            assert (len(row.hash_ids) - 1) * block_tokens < row.input_length
        if row.output_ids is not None:
            end = (row.input_length + row.output_length) // block_tokens
            assert len(row.output_ids) == end - row.input_length // block_tokens


def mutated(line: bytes, seed: int) -> bytes:
    """The line with a few bytes changed, added or left out, and no line break among them."""
    draw = random.Random(seed)
    text = bytearray(line)
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(text))
        kind = draw.randrange(4)
        if kind == 0:
            text[at] = draw.choice(b'0123456789-+.eE"\\{}[],: \x00\xff\xc3anN')
        elif kind == 1:
            del text[at : at + draw.randint(1, 12)]
        elif kind == 2:
            text[at:at] = draw.choice([b"9" * 30, b"-", b"null", b"[", b'"', b"1e400", b"NaN"])
        else:
            del text[at:]
        if not text:
            text += b"x"
    return bytes(text).replace(b"\n", b" ") or b"x"


def check_mutations(reader: Any, path: Path, good: list[bytes], seed: int, header: bytes) -> None:
    """Every line is read or refused, and those not changed are read, wherever they stand."""
    draw = random.Random(seed)
    lines = [mutated(each, draw.randrange(1 << 30)) for each in good for _ in range(4)]
    lines = [each for each in lines if not each.isspace()]
    text = header + b"\n".join([*lines, *good]) + b"\n"
    rows, bad = read_skipping(reader, write(path, text))
    left_out = len(lines) + len(good) - len(rows)
    assert bad.count == left_out
    assert bad.count <= len(lines)
    check_rows(rows, reader.open(Source(path), NO_OPTIONS, bad).layout.block_tokens)
    if bad.count:
        assert f"line {bad.listed[0].line}" in refusal(reader, path)
