"""RAGPulse: prompts put together from pieces of content, whose lengths are in files beside it.

    0_trace.jsonl       {"timestamp": "82", "input_length": 3112, "output_length": 192,
                         "hash_ids": {"sys_prompt": [8302, ...], "passages_ids": [...],
                                      "history": [...], "web_search": [], "user_input": [26923]},
                         "session_id": "1757476916095-..."}
    1_sys_prompt.jsonl  {"sys_prompt_id": 8302, "token_length": 512}       (and so on, up to 5)

`timestamp` is in seconds, as text. A prompt has its pieces in the order above. An id is content
alone, not content and all before it. All kinds share one number space, as in the repository's own
loader, `preprocess_data.py` of flashserve/RAGPulse.

**Lengths.** The pieces sum to 6 to 12 tokens less than `input_length`: a chat template has them.
They are added to the last piece, so that a prompt has the file's ids and no more (the ideal hit
rate of the published trace is .1796 of *those*). Longer by that, it is other content than the piece
without: it gets the id `file's id + (its tokens << 31)`, as does every piece that does not have the
length of its id. Where a file of lengths is missing (a pipe has none beside it), those lengths are
estimated, and a note says so: an id keeps the even share of the prompt it was first seen in.

**Clock.** It counts from noon of the first day. In the published file it starts again after seven
days: two weeks, one after the other. A time that falls by a day or more therefore goes on from the
next whole day; by less, the row arrives with the one before. Both are noted.

Refused: what does not decode, a piece without length, lengths that do not match `input_length`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec

from hicache.errors import InputError
from traces.jsonlines import decode_lines
from traces.recorded import Arrivals, Seconds, milliseconds
from traces.rows import BadRows, Batch, Layout, PromptTokens, ReadOptions, Row, Tokens
from traces.source import Source

# Kind of a piece, in the order of a prompt; the file of its lengths.
LENGTH_FILES = {
    "sys_prompt": "1_sys_prompt.jsonl",
    "passages_ids": "2_passages.jsonl",
    "history": "3_history.jsonl",
    "web_search": "5_web_search.jsonl",
    "user_input": "4_user_input.jsonl",
}
MOST_TEMPLATE_TOKENS = 64
DAY_MS = 86_400_000
ID_BITS = 31

_Id = Annotated[int, msgspec.Meta(ge=0, lt=1 << ID_BITS)]
_SECONDS = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?", re.ASCII)
_KINDS = tuple(f'"{kind}"'.encode() for kind in ("sys_prompt", "passages_ids", "user_input"))


class _Pieces(msgspec.Struct, gc=False):
    sys_prompt: list[_Id]
    passages_ids: list[_Id]
    history: list[_Id]
    web_search: list[_Id]
    user_input: list[_Id]


class _Query(msgspec.Struct, gc=False):
    timestamp: str | Seconds
    input_length: PromptTokens
    output_length: Tokens
    hash_ids: _Pieces
    session_id: str = ""


class _Length(msgspec.Struct, gc=False):
    token_length: PromptTokens
    sys_prompt_id: _Id | None = None
    passage_id: _Id | None = None
    history_id: _Id | None = None
    web_search_id: _Id | None = None
    user_input_id: _Id | None = None


_DECODER = msgspec.json.Decoder(_Query)
_LENGTH_DECODER = msgspec.json.Decoder(_Length)
_ID_FIELDS = dict(zip(LENGTH_FILES, _Length.__struct_fields__[1:], strict=True))


class RAGPulseReader:
    """Reads RAGPulse's trace file, with the files of lengths in the same folder."""

    name = "ragpulse"
    describes = "RAGPulse JSON lines (timestamp in s, hash_ids by kind, session_id)"

    def recognises(self, head: bytes) -> bool:
        """Whether the first line that is not blank names a kind of piece, or one's length."""
        line = head.lstrip().split(b"\n", 1)[0]
        return line.startswith(b"{") and (any(kind in line for kind in _KINDS) or _is_length(line))

    def open(self, source: Source, options: ReadOptions, bad: BadRows) -> RAGPulseStream:
        """`InputError` for a block size: there are pieces, each with its own length."""
        if options.block_tokens is not None:
            raise InputError(
                f"{source.name}: a block size was given, but each piece has its own length"
            )
        if _is_length(source.head().lstrip().split(b"\n", 1)[0]):
            raise InputError(
                f"{source.name}: has the lengths of a RAGPulse trace's pieces: give the folder, or "
                "the trace in it (0_trace.jsonl)"
            )
        return RAGPulseStream(source, bad)

    def open_folder(
        self, sources: Sequence[Source], options: ReadOptions, bad: BadRows
    ) -> RAGPulseStream:
        """The folder of a trace and its files of lengths; `InputError` where there is another."""
        trace, *others = sources
        for other in others:
            if os.path.basename(other.path) not in LENGTH_FILES.values():
                raise InputError(
                    f"{other.name}: is no file of a RAGPulse trace, which is one folder with "
                    f"{os.path.basename(trace.path)} and {', '.join(sorted(LENGTH_FILES.values()))}"
                )
        return self.open(trace, options, bad)


def _is_length(line: bytes) -> bool:
    """Whether a line is one of a file of lengths."""
    return b'"token_length"' in line and any(
        f'"{field}"'.encode() in line for field in _ID_FIELDS.values()
    )


class RAGPulseStream:
    """One pass over a RAGPulse trace."""

    layout = Layout(block_tokens=0)

    def __init__(self, source: Source, bad: BadRows) -> None:
        self._source = source
        self._bad = bad
        self._arrivals = Arrivals()
        self._offset_ms = 0
        self._restarts: list[int] = []
        self._lengths: dict[int, int] = {}
        self._missing_files: list[str] = []
        self._known_kinds: frozenset[str] = frozenset()

    @property
    def notes(self) -> list[str]:
        """What was changed or estimated."""
        name = os.path.basename(self._source.path)
        notes = [
            f"{name}, line {line}: the clock starts again; it was taken to go on from "
            "the next whole day, so that the trace lasts longer than its times say"
            for line in self._restarts[:3]
        ]
        if self._missing_files:
            notes.append(
                f"no {', '.join(self._missing_files)} beside the trace: the lengths of those "
                "pieces are estimated, an even share of the first prompt that has them"
            )
        return notes + self._arrivals.notes()

    def batches(self) -> Iterator[Batch]:
        """Yield the rows in file order, a piece of the file at a time."""
        self._arrivals, self._offset_ms, self._restarts = Arrivals(), 0, []
        self._read_lengths()
        for first_line, piece in self._source.pieces():
            rows: list[Row] = []
            row_lines: list[int] = []
            decoded = decode_lines(_DECODER, first_line, piece, self._bad)
            for query, line in zip(*decoded, strict=True):
                row = self._row(query, line)
                if row is not None:
                    rows.append(row)
                    row_lines.append(line)
            if rows:
                yield Batch(rows, row_lines)

    def _row(self, query: _Query, line: int) -> Row | None:
        seconds = query.timestamp
        if isinstance(seconds, str):
            if not _SECONDS.fullmatch(seconds):
                self._bad.refuse(line, "timestamp", f"{seconds[:40]!r} is no time in seconds")
                return None
            seconds = float(seconds)
        pieces = query.hash_ids
        ids = (
            pieces.sys_prompt
            + pieces.passages_ids
            + pieces.history
            + pieces.web_search
            + pieces.user_input
        )
        if not ids:
            self._bad.refuse(line, "hash_ids", f"no piece for {query.input_length} tokens")
            return None
        lengths = [self._lengths.get(each, 0) for each in ids]
        if self._missing_files:
            fits = self._estimate(query, ids, lengths, line)
        else:
            fits = self._complete(query, ids, lengths, line)
        if not fits:
            return None
        return Row(
            query.input_length,
            query.output_length,
            self._arrival_ms(milliseconds(seconds), line),
            ids,
            lengths,
            session=query.session_id,
        )

    def _arrival_ms(self, clock_ms: int | float, line: int) -> int | float:
        now_ms = clock_ms + self._offset_ms
        behind_ms = self._arrivals.latest_ms - now_ms
        if behind_ms >= DAY_MS:
            days_ms = -int(-behind_ms // DAY_MS) * DAY_MS
            self._offset_ms += days_ms
            self._restarts.append(line)
            now_ms += days_ms
        return self._arrivals.take(now_ms, line)

    def _complete(self, query: _Query, ids: list[int], lengths: list[int], line: int) -> bool:
        """Give the template's tokens to the last piece. False: the row was refused."""
        if 0 in lengths:
            self._refuse_unknown(query.hash_ids, line)
            return False
        template_tokens = query.input_length - sum(lengths)
        if not 0 <= template_tokens <= MOST_TEMPLATE_TOKENS:
            self._bad.refuse(
                line,
                "hash_ids",
                f"the {len(ids)} pieces have {sum(lengths)} tokens, which do not match "
                f"input_length {query.input_length}",
            )
            return False
        if template_tokens:
            lengths[-1] += template_tokens
            ids[-1] |= lengths[-1] << ID_BITS
        return True

    def _estimate(self, query: _Query, ids: list[int], lengths: list[int], line: int) -> bool:
        """Fill in lengths that are not known. False: the row was refused."""
        for kind in self._known_kinds:
            if any(each not in self._lengths for each in getattr(query.hash_ids, kind)):
                self._refuse_unknown(query.hash_ids, line)
                return False
        left = query.input_length
        if left < len(ids):
            self._bad.refuse(line, "hash_ids", f"{len(ids)} pieces for {left} tokens")
            return False
        for index, each in enumerate(ids):
            behind = len(ids) - index - 1
            tokens = self._lengths.get(each, 0)
            if not tokens:
                tokens = self._lengths[each] = left // (behind + 1)
            # At least one token is left for each piece behind, and all for the last.
            actual = min(tokens, left - behind) if behind else left
            if actual != tokens:
                ids[index] |= actual << ID_BITS
            lengths[index] = actual
            left -= actual
        return True

    def _refuse_unknown(self, pieces: _Pieces, line: int) -> None:
        for kind, file in LENGTH_FILES.items():
            for index, each in enumerate(getattr(pieces, kind)):
                if each not in self._lengths:
                    self._bad.refuse(
                        line, f"hash_ids.{kind}[{index}]", f"id {each} has no length in {file}"
                    )
                    return

    def _read_lengths(self) -> None:
        """Read the files of lengths. A malformed one is an `InputError`: no row can be trusted."""
        self._lengths, self._missing_files = {}, []
        known_kinds = []
        folder = os.path.dirname(self._source.path)
        for kind, name in LENGTH_FILES.items():
            path = os.path.join(folder, name)
            if self._source.path == "-" or not os.path.isfile(path):
                self._missing_files.append(name)
                continue
            known_kinds.append(kind)
            self._read_length_file(path, _ID_FIELDS[kind])
        self._known_kinds = frozenset(known_kinds)

    def _read_length_file(self, path: str, field: str) -> None:
        bad = BadRows(path)
        lengths = self._lengths
        for first_line, piece in Source(path).pieces():
            for each, line in zip(
                *decode_lines(_LENGTH_DECODER, first_line, piece, bad), strict=True
            ):
                content = getattr(each, field)
                if content is None:
                    bad.fatal(line, field, "is missing")
                if lengths.setdefault(content, each.token_length) != each.token_length:
                    bad.fatal(
                        line,
                        "token_length",
                        f"id {content} has {each.token_length} tokens here and "
                        f"{lengths[content]} before",
                    )
