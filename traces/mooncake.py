"""Mooncake's trace format: one JSON object a line, a prompt given as ids of its 512-token blocks.

    {"timestamp": 27000, "input_length": 6758, "output_length": 500, "hash_ids": [0, 14, 15, ...]}

`timestamp` is in milliseconds, never falls, and may have decimals. `hash_ids` has one id for each
block, the partly filled last one included; a file may leave that one out, and then its tokens never
hit. Ids are whole numbers of up to 64 bits; those of more than 60 are numbered anew (rows hold 62).
`session_id` groups rows; other keys are ignored and blank lines skipped. Everything else is
refused: an error names file, line, field and reason. Nothing is repaired or guessed.

A file whose first 64 KiB hold a row with `delay` and no `timestamp` is of the delta form, which
`traces.mooncake_delta` reads. In all others each row holds a whole prompt, also where rows have a
`session_id`, and needs its `timestamp`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from traces.jsonlines import decode_lines
from traces.mooncake_rules import (
    LARGEST_HASH,
    LATEST_MS,
    HashId,
    ids_against_length,
    ids_fit,
    too_large_id,
    wrong_time,
)
from traces.rows import (
    LISTED_BAD_ROWS,
    BadRows,
    Batch,
    Layout,
    PromptTokens,
    ReadOptions,
    Row,
    RowStream,
    Tokens,
)
from traces.source import Source

USUAL_BLOCK_TOKENS = 512
# Ids from here on (hashes, not numbers) are numbered in order of appearance.
FIRST_RENUMBERED = 1 << 60


class MooncakeLine(msgspec.Struct, gc=False):
    """One line whose prompt is whole."""

    timestamp: int | float
    input_length: PromptTokens
    output_length: Tokens
    hash_ids: list[HashId]
    session_id: str | int = ""


_DECODER = msgspec.json.Decoder(MooncakeLine)
_FIELDS = (b'"timestamp"', b'"input_length"', b'"output_length"', b'"hash_ids"')
_SOUND = re.compile(rb'"hash_ids"\s*:\s*\[')
_BY_KIND = re.compile(rb'"hash_ids"\s*:\s*\{')  # RAGPulse
# Keys by which formats that have some of Mooncake's, too, are told from it.
_OF_OTHERS = (
    b'"hicache_trace"',  # HiCache Lab
    b'"chat_id"',  # Qwen Bailian
    b'"parent_chat_id"',
    b'"sys_prompt"',  # RAGPulse
    b'"passages_ids"',
    b'"user_input"',
    b'"chunk_hashes"',  # LMCache
    b'"seq_len"',
    b'"input_ids"',  # HiSim, SGLang
    b'"final_prefix_cache_len"',
    b'"input_tok_ids"',  # LLMServingSim
    b'"input_toks"',
    b'"sub_requests"',
    b'"prompt"',
    b'"event"',  # SGLang
    b'"messages"',  # OpenAI
    b'"conversations"',  # ShareGPT
    b'"qa_pairs"',  # LooGLE, LongBench
    b'"context"',
    b'"contexts"',
    b'"queries"',
    b'"requests"',  # kv-cache-tester
    b'"tool_tokens"',
    b'"system_tokens"',
    b'"hash_id_scope"',
)


class _HeadLine(msgspec.Struct, gc=False):
    """What tells the delta form."""

    timestamp: Any = None
    delay: Any = None


_HEAD_DECODER = msgspec.json.Decoder(_HeadLine)


class MooncakeReader:
    """Reads Mooncake's JSON lines."""

    name = "mooncake"
    describes = "Mooncake JSON lines (timestamp, input_length, output_length, hash_ids)"

    def recognises(self, head: bytes) -> bool:
        """Whether the first line that is not blank looks like this format, sound or not.

        A damaged one counts only where the lines behind it are not of another format, either.
        """
        lines = head.lstrip().split(b"\n", 3)
        line = lines[0]
        if not line.startswith(b"{") or sum(field in line for field in _FIELDS) < 2:
            return False
        looked_at = line if _SOUND.search(line) else b"\n".join(lines[:3])
        return not any(key in looked_at for key in _OF_OTHERS) and not _BY_KIND.search(looked_at)

    def open(self, source: Source, options: ReadOptions, bad: BadRows) -> RowStream:
        """One pass over `source`; its head tells whether it is of the delta form."""
        block_tokens = options.block_tokens or USUAL_BLOCK_TOKENS
        if is_delta(source.head()):
            from traces.mooncake_delta import DeltaStream

            return DeltaStream(source, block_tokens, bad)
        return _PlainStream(source, block_tokens, bad)


def is_delta(head: bytes) -> bool:
    """Whether a whole line of `head` has a delay and no timestamp."""
    if b'"delay"' not in head:
        return False
    for line in head.split(b"\n"):
        if b'"delay"' in line:
            try:
                fields = _HEAD_DECODER.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            if fields.timestamp is None and fields.delay is not None:
                return True
    return False


class _PlainStream:
    def __init__(self, source: Source, block_tokens: int, bad: BadRows) -> None:
        self.layout = Layout(block_tokens)
        self._block_tokens = block_tokens
        self.notes: list[str] = []
        self._source = source
        self._bad = bad
        # By id, for those that are renumbered.
        self._number_of: dict[int, int] = {}

    def batches(self) -> Iterator[Batch]:
        """The rows in file order. `InputError` for a bad one."""
        self._number_of = {}
        last_ms: int | float = -LATEST_MS
        for first_line, piece in self._source.pieces():
            read, at_lines = decode_lines(_DECODER, first_line, piece, self._bad)
            rows, lines = [], []
            for each, line in zip(read, at_lines, strict=True):
                trouble = self._trouble(each, last_ms, read)
                if trouble is None:
                    last_ms = each.timestamp
                    rows.append(
                        Row(
                            each.input_length,
                            each.output_length,
                            last_ms,
                            each.hash_ids,
                            None,
                            None,
                            None,
                            str(each.session_id),
                        )
                    )
                    lines.append(line)
                else:
                    self._bad.refuse(line, *trouble)
            if rows:
                yield Batch(rows, lines)

    def _trouble(
        self, row: MooncakeLine, last_ms: float, batch: list[MooncakeLine]
    ) -> tuple[str, str] | None:
        """Field and reason of what the decoder cannot see: a time that falls, ids that do not fit.

        `batch` is what was read with the row.
        """
        tokens, ids, block_tokens = row.input_length, row.hash_ids, self._block_tokens
        num_ids = len(ids)
        if not last_ms <= row.timestamp <= LATEST_MS:
            return "timestamp", wrong_time(row.timestamp, last_ms)
        if num_ids != (tokens - 1) // block_tokens + 1 and num_ids != tokens // block_tokens:
            return "hash_ids", self._other_ids(row, batch)
        if num_ids and max(ids) >= FIRST_RENUMBERED:
            if max(ids) > LARGEST_HASH:
                return too_large_id(ids)
            row.hash_ids = self._renumbered(ids)
        return None

    def _renumbered(self, ids: list[int]) -> list[int]:
        """The ids, the largest of which have other numbers: rows hold 62 bits."""
        number_of = self._number_of
        return [
            each
            if each < FIRST_RENUMBERED
            else number_of.setdefault(each, FIRST_RENUMBERED + len(number_of))
            for each in ids
        ]

    def _other_ids(self, row: MooncakeLine, batch: list[MooncakeLine]) -> str:
        """What to say of ids that do not match the length; the block size may be another."""
        reason = ids_against_length(len(row.hash_ids), row.input_length, self._block_tokens)
        if len(self._bad.listed) == LISTED_BAD_ROWS:
            return reason  # nobody will read more
        for other in (1 << power for power in range(17)):
            if ids_fit(len(row.hash_ids), row.input_length, other):
                alike = sum(ids_fit(len(each.hash_ids), each.input_length, other) for each in batch)
                return (
                    f"{reason}; perhaps the trace has another block size: --block-size {other} "
                    f"fits this line and {alike} of the {len(batch)} read with it"
                )
        return f"{reason}; no block size that is a power of two fits this line"
