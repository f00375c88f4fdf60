"""The lines of a record: operations and completions as JSON, and operations from it.

    ["Copy", direction, pages, bytes, extents, source, target(, keys(, rank))]    lists as pairs
    ["Prefill", [[request, new tokens, past tokens], ...], tokens, decode batch, context(, load)]
    ["Decode", batch, context, most steps, [request, ...]]
    ["Lookup", pages, keys(, rank)]

What a run writes for every operation is put together by hand. Refuses to know what a record as a
whole must hold: `hicache.record` does.
"""

from __future__ import annotations

import json
from typing import Any, cast

from hicache.operations import (
    DIRECTIONS,
    Chunk,
    Completion,
    Copy,
    Decode,
    Lookup,
    Operation,
    PageRuns,
    Prefill,
)

# Made once: `json.dumps` with separators makes an encoder for each call.
_LINE = json.JSONEncoder(separators=(",", ":")).encode


def line_text(items: tuple[Any, ...]) -> str:
    """A line of a record. The third of a failure's items is its operation."""
    if items[0] == "failed":
        kind, number, operation, *rest = items
        items = (kind, number, _encode(operation), *rest)
    return _LINE(items)


def done_text(done: Completion, operation: Operation) -> str:
    """The line of `operation`'s completion: what `json` makes of it, letter for letter, but that
    takes twice as long.
    """
    return (
        f'["done",{done.number},{_operation_text(operation)},{done.submitted_ns},'
        f"{done.started_ns},{done.finished_ns},{done.stamp_ns},{done.setup_ns},{done.steps},"
        f"[{','.join(map(str, done.step_ends_ns))}]]"
    )


def _operation_text(operation: Operation) -> str:
    if isinstance(operation, Copy):
        keys = ""
        if operation.keys or operation.rank:
            keys = f",{_pairs_text(operation.keys)}"
        if operation.rank:
            keys += f",{operation.rank}"
        return (
            f'["Copy","{operation.direction}",{operation.pages},{operation.size_bytes},'
            f"{operation.extents},{_pairs_text(operation.source)},"
            f"{_pairs_text(operation.target)}{keys}]"
        )
    if isinstance(operation, Decode):
        return (
            f'["Decode",{operation.batch},{operation.context_tokens},{operation.max_steps},'
            f"[{','.join(map(str, operation.requests))}]]"
        )
    return _LINE(_encode(operation))


def _pairs_text(pairs: PageRuns) -> str:
    return f"[{','.join([f'[{first},{length}]' for first, length in pairs])}]"


def _encode(operation: Operation) -> list[object]:
    fields = operation.fields()
    if type(operation) is Prefill:
        rest = fields[1:] if operation.load >= 0 else fields[1:-1]
        fields = ([chunk.fields() for chunk in operation.chunks], *rest)
    elif type(operation) is Copy and not operation.rank:
        fields = fields[:-1] if operation.keys else fields[:-2]
    elif type(operation) is Lookup and not operation.rank:
        fields = fields[:-1]
    return [type(operation).__name__, *fields]


def decoded(items: list[Any]) -> Operation:
    """The operation that was read. Raises ValueError, TypeError or LookupError if it is none."""
    kind, *fields = items
    if kind == "Copy":
        direction, pages, size_bytes, extents, source, target, *rest = fields
        if direction not in DIRECTIONS:
            raise ValueError(f"unknown direction {direction!r}")
        whole([pages, size_bytes, extents, *rest[1:]])
        if len(rest) > 2:
            raise ValueError(f"{len(fields)} fields of a copy")
        return Copy(
            direction, pages, size_bytes, extents, _runs(source), _runs(target),
            _runs(rest[0]) if rest else (), *rest[1:],
        )  # fmt: skip
    if kind == "Lookup":
        asked, keys, *rank = fields
        pages, *rank = whole([asked, *rank])
        return Lookup(pages, _runs(keys), *rank)
    if kind == "Prefill":
        chunks, *counts = fields
        parts = tuple(Chunk(*whole(chunk)) for chunk in chunks)
        return Prefill(parts, *whole(counts))
    if kind == "Decode":
        *counts, requests = fields
        batch, context_tokens, max_steps = whole(counts)
        return Decode(batch, context_tokens, max_steps, tuple(whole(requests)))
    raise ValueError(f"unknown operation {kind!r}")


def _runs(pairs: list[list[int]]) -> tuple[tuple[int, int], ...]:
    return tuple((first, length) for first, length in map(whole, pairs))


def whole(values: Any) -> list[int]:
    """`values`, if it is a list of whole numbers."""
    if not isinstance(values, list) or any(
        type(value) is not int for value in cast("list[Any]", values)
    ):
        raise ValueError(f"{values!r} is no list of whole numbers")
    return cast("list[int]", values)
