"""What holds of the rows of every format, and the ways in which a record can be bad."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from reader_samples import Place, Sample

from traces.rows import Layout, Row

# A value that is no JSON takes this one's place in the bytes of a record.
RAW = "@raw@"


def check_contract(rows: Sequence[Row], layout: Layout) -> None:
    """What `traces.rows` promises of every row, of any format."""
    latest = -float("inf")
    for number, row in enumerate(rows):
        assert 1 <= row.input_length < 1 << 31
        assert 0 <= row.output_length < 1 << 31
        if row.timestamp is None:
            assert not layout.timed
        else:
            assert latest <= row.timestamp < float("inf")
            latest = row.timestamp
        assert -1 <= row.after < number
        assert 0 <= row.delay < float("inf")
        assert -1 <= row.cached_tokens <= row.input_length
        row.session.encode()
        _check_ids(row, layout)


def _check_ids(row: Row, layout: Layout) -> None:
    tokens, block_tokens = row.input_length, layout.block_tokens
    ids, answer = row.hash_ids, row.output_ids
    for each in (*ids, *(answer or ())):
        assert type(each) is int
        assert 0 <= each < 1 << 62
    if not layout.has_ids:
        assert not ids
        assert not answer
    elif row.lengths is not None:
        assert not block_tokens
        assert len(row.lengths) == len(ids)
        assert all(each >= 0 for each in row.lengths)
        assert sum(row.lengths) <= tokens
    elif block_tokens or ids:
        assert len(ids) in (tokens // block_tokens, -(-tokens // block_tokens))
    if answer and row.output_lengths is not None:
        assert len(row.output_lengths) == len(answer)
        assert sum(row.output_lengths) <= row.output_length
    elif answer:
        start = tokens // block_tokens
        assert len(answer) <= (tokens + row.output_length) // block_tokens - start


def canonical(rows: Sequence[Row], made: Sample, without: Sequence[int] = ()) -> list[Any]:
    """The rows with ids and sessions numbered in order of appearance, some left out.

    Of rows that say something of each other, only the prompts.
    """
    id_of: dict[int, int] = {}
    session_of: dict[str, int] = {}
    number_of = {-1: -1}
    found: list[Any] = []

    def ids(given: list[int] | None) -> list[int] | None:
        return given and [id_of.setdefault(each, len(id_of)) for each in given]

    for number, row in enumerate(rows):
        if number in without:
            continue
        number_of[number] = len(found)
        if not made.independent:
            found.append((row.input_length, row.output_length, row.timestamp, ids(row.hash_ids)))
            continue
        found.append(
            (
                *(row.input_length, row.output_length, row.timestamp, row.delay, row.lengths),
                *(ids(row.hash_ids), ids(row.output_ids), row.output_lengths, row.cached_tokens),
                session_of.setdefault(row.session, len(session_of)),
                number_of.get(row.after, -1),
            )
        )
    return found


# --- Bad records


def _changed(record: bytes, path: Place, raw: bytes) -> bytes:
    """The record with the value at `path` written as `raw`."""
    value = json.loads(record)
    inner = value
    for each in path[:-1]:
        inner = inner[each]
    inner[path[-1]] = RAW
    return json.dumps(value).encode().replace(f'"{RAW}"'.encode(), raw)


def _without(record: bytes, path: Place) -> bytes:
    value = json.loads(record)
    inner = value
    for each in path[:-1]:
        inner = inner[each]
    del inner[path[-1]]
    return json.dumps(value).encode()


def _with_another_id(record: bytes, path: Place) -> bytes:
    value = json.loads(record)
    inner = value
    for each in path[:-1]:
        inner = inner[each]
    ids = inner[path[-1]]
    ids += [ids[-1]] * 3
    return json.dumps(value).encode()


BAD_COUNTS = {
    "text": b'"seven"',
    "blank": b'""',
    "null": b"null",
    "a list": b"[7]",
    "negative": b"-1",
    "a fraction": b"5.5",
    "NaN": b"NaN",
    "Infinity": b"Infinity",
    "1e400": b"1e400",
    "2**63": b"9223372036854775808",
    "2**64": b"18446744073709551616",
    "400 digits": b"9" * 400,
    "5000 digits": b"9" * 5000,
}
BAD_TIMES = {
    "text": b'"soon"',
    "blank": b'""',
    "true": b"true",
    "NaN": b"NaN",
    "-Infinity": b"-Infinity",
    "1e400": b"1e400",
    "1e300": b"1e300",
    "-1e300": b"-1e300",
    "400 digits": b"9" * 400,
    "5000 digits": b"9" * 5000,
}
BAD_IDS = {
    "text": b'"ids"',
    "null": b"null",
    "negative": b"[-1]",
    "a fraction": b"[0.5]",
    "NaN": b"[NaN]",
    "nested": b"[[1]]",
    "400 digits": b"[%s]" % (b"9" * 400),
    "an object": b'{"a": 1}',
}
# Put into an object as one more member, which no format looks at.
BAD_MEMBERS = {
    "no UTF-8": b'"zz": "\xff"',
    "half of a surrogate pair": b'"zz": "\\ud800"',
    "a NUL in a text": b'"zz": "a\0b"',
    "deep nesting": b'"zz": ' + b"[" * 5_000 + b"]" * 5_000,
    "deep objects": b'"zz": ' + b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
    "NaN that is not read": b'"zz": NaN',
    "a tab in a text": b'"zz": "a\tb"',
}
# What breaks the structure of a document around the record, too.
BAD_ENDS = {
    "cut off": lambda record: record[: len(record) * 2 // 3],
    "only a brace": lambda record: b"{",
    "a NUL behind it": lambda record: record + b"\0",
    "two at once": lambda record: record + record,
    "no comma": lambda record: record.replace(b", ", b" ", 1),
    "another bracket": lambda record: record[:-1] + b"]",
}


def bad_records(made: Sample) -> Iterator[tuple[str, bytes]]:
    """(what is wrong, record) for each way in which the second record of a sample can be bad."""
    record = made.records[1]
    if not made.is_json:
        yield from bad_csv_records(made)
        return
    for kinds, path in ((BAD_COUNTS, made.count), (BAD_TIMES, made.time), (BAD_IDS, made.ids)):
        for kind, raw in kinds.items():
            if path and not (kind == "null" and path not in made.needed):
                yield f"{path[-1]}: {kind}", _changed(record, path, raw)
    for path in made.needed:
        yield f"{path[-1]} is missing", _without(record, path)
    if made.ids:
        yield "ids that do not match the length", _with_another_id(record, made.ids)
    for kind, member in BAD_MEMBERS.items():
        yield kind, record[:-1] + b", " + member + b"}"
    for path in made.needed:
        if len(path) == 1:
            again = json.dumps(json.loads(record)[path[0]]).encode()
            yield f"{path[0]} twice", record[:-1] + b', "%s": %s}' % (str(path[0]).encode(), again)
    for kind, value in (("a number", b"7"), ("a text", b'"a"'), ("null", b"null")):
        yield kind, value


def bad_csv_records(made: Sample) -> Iterator[tuple[str, bytes]]:
    fields = made.records[1].split(b",")
    column = 4 if made.format == "burstgpt" else 1
    bad = {"blank": b"", "text": b"x", "negative": b"-1", "NaN": b"nan", "1e400": b"1e400"}
    bad |= {"2**63": b"9223372036854775808", "400 digits": b"9" * 400, "NUL": b"1\0", "inf": b"inf"}
    bad |= {"no UTF-8": b"1\xff", "other digits": "١٢".encode(), "quoted": b'"1'}
    for kind, raw in bad.items():
        yield f"count: {kind}", b",".join((*fields[:column], raw, *fields[column + 1 :]))
        if raw:
            yield f"time: {kind}", b",".join((raw, *fields[1:]))
    yield "no time", b",".join((b"", *fields[1:]))
    yield "one field less", b",".join(fields[:-1])
    yield "one field more", b",".join((*fields, b"1"))
    yield "many fields", b"," * 100_000
