"""LMCache's look-up logs: the hashes of a prompt's full chunks, at the time they were looked up.

    {"timestamp": 1711929600.123, "request_id": "req-1", "model_name": "DeepSeek-V3",
     "chunk_size": 256, "seq_len": 8192, "dtypes": [...], "shapes": [...],
     "chunk_hashes": ["0xabcd...", ...]}

Written with `--lookup-hash-log-dir`. `timestamp` is in seconds of 1970; `chunk_hashes` are chained
and stand for full chunks only, so that the `seq_len % chunk_size` tokens at the end never hit.
Source: lmcache/v1/mp_observability/subscribers/logging/lookup_hash.py and
lmcache/tools/cache_simulator/README.md of LMCache/LMCache.

Hashes are numbered in order of appearance, those of each model apart: memory is bounded by the
distinct chunks. The log has no answers: output lengths are 0. Refused: what does not decode, a
chunk size that changes, hashes that do not match the length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

import msgspec

from hicache.errors import InputError
from traces.jsonlines import decode_lines
from traces.recorded import Arrivals, Seconds, ids_mismatch, milliseconds
from traces.rows import BadRows, Batch, Layout, PromptTokens, ReadOptions, Row
from traces.source import Source

CHUNK_TOKENS = 256

_ChunkTokens = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
# Hashes have any number of bits: they are keys of a dict, and never computed with.
_Hash = Annotated[str, msgspec.Meta(min_length=1)] | int


class _LookUp(msgspec.Struct, gc=False):
    timestamp: Seconds
    seq_len: PromptTokens
    chunk_hashes: list[_Hash]
    chunk_size: _ChunkTokens | None = None
    model_name: str = ""
    request_id: str | int = ""


_DECODER = msgspec.json.Decoder(_LookUp)
_CHUNK_SIZE = re.compile(rb'"chunk_size"\s*:\s*([0-9]{1,7})\b')


class LMCacheReader:
    """Reads LMCache's look-up logs."""

    name = "lmcache"
    describes = "LMCache look-up logs (timestamp in s, seq_len, chunk_size, chunk_hashes)"

    def recognises(self, head: bytes) -> bool:
        """Whether the first line that is not blank has chunk hashes."""
        line = head.lstrip().split(b"\n", 1)[0]
        if not line.startswith(b"{"):
            return False
        return b'"chunk_hashes"' in line or (b'"chunk_size"' in line and b'"seq_len"' in line)

    def open(self, source: Source, options: ReadOptions, bad: BadRows) -> LMCacheStream:
        """The first chunk size in the file counts; where it says none, that of `options`.

        `InputError` for a block size that contradicts the file.
        """
        stated = _CHUNK_SIZE.search(source.head())
        chunk_tokens = int(stated[1]) if stated else 0
        given = options.block_tokens
        if chunk_tokens and given not in (None, chunk_tokens):
            raise InputError(
                f"{source.name}: block size is {given}, but the log says chunk_size {chunk_tokens}"
            )
        return LMCacheStream(source, chunk_tokens or given or CHUNK_TOKENS, bad)


class LMCacheStream:
    """One pass over a look-up log."""

    def __init__(self, source: Source, chunk_tokens: int, bad: BadRows) -> None:
        self.layout = Layout(chunk_tokens)
        self._source = source
        self._bad = bad
        self._arrivals = Arrivals()
        self._models = 0
        self._repeats = 0

    @property
    def notes(self) -> list[str]:
        """What the log lacks, and what was changed."""
        notes = ["the log has no answers: every output length is 0", *self._arrivals.notes()]
        if self._models > 1:
            notes.append(
                f"the log is of {self._models} models, whose chunks were kept apart; "
                "they are replayed as if one server had them all"
            )
        if self._repeats:
            notes.append(
                f"{self._repeats} look-ups are for the same request as the one before; "
                "each counts as a request"
            )
        return notes

    def batches(self) -> Iterator[Batch]:
        """Yield the rows in file order, a piece of the file at a time."""
        arrivals = self._arrivals = Arrivals()
        self._models = self._repeats = 0
        ids_of: dict[str, dict[str | int, int]] = {}
        num_ids = 0
        last_request: str | int = ""
        for first_line, piece in self._source.pieces():
            rows: list[Row] = []
            row_lines: list[int] = []
            decoded = decode_lines(_DECODER, first_line, piece, self._bad)
            for look_up, line in zip(*decoded, strict=True):
                if not self._suits(look_up, line):
                    continue
                ids = ids_of.setdefault(look_up.model_name, {})
                for each in look_up.chunk_hashes:
                    if each not in ids:
                        ids[each] = num_ids
                        num_ids += 1
                if look_up.request_id != "":
                    self._repeats += look_up.request_id == last_request
                    last_request = look_up.request_id
                now_ms = arrivals.take(milliseconds(look_up.timestamp), line)
                hash_ids = [ids[each] for each in look_up.chunk_hashes]
                rows.append(Row(look_up.seq_len, 0, now_ms, hash_ids))
                row_lines.append(line)
            self._models = len(ids_of)
            if rows:
                yield Batch(rows, row_lines)

    def _suits(self, look_up: _LookUp, line: int) -> bool:
        chunk_tokens = self.layout.block_tokens
        if look_up.chunk_size not in (None, chunk_tokens):
            self._bad.refuse(
                line, "chunk_size", f"{look_up.chunk_size} is not the {chunk_tokens} of the log"
            )
            return False
        reason = ids_mismatch(look_up.seq_len, len(look_up.chunk_hashes), chunk_tokens)
        if reason:
            self._bad.refuse(line, "chunk_hashes", reason)
        return not reason
