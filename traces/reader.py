"""The way in: `open_trace` tells a trace's format from its content and streams its requests.

A format is a `TraceReader` that `FORMATS` names; nothing else knows which formats there are. A
reader's module is imported when its turn to look at a file comes, so that reading one format does
not load the others. A trace is streamed: never held as a whole.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
from array import array
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from hicache.errors import InputError
from hicache.requests import Request
from traces.cut import Pages, cutter_for
from traces.facts import TraceFacts
from traces.made import Noted, hints_of
from traces.rows import BadRows, Layout, ReadOptions, RowStream
from traces.source import Progress, Source
from traces.stream import RequestStream, check_speed

if TYPE_CHECKING:
    from traces.synthetic_prefixes import Prefixes

OnError = Literal["stop", "skip"]


class TraceReader(Protocol):
    """One format. Readers have no state: what a pass learns is in its stream."""

    @property
    def name(self) -> str:
        """Short name for options and tables."""
        ...

    @property
    def describes(self) -> str:
        """What the format is, in one phrase."""
        ...

    def recognises(self, head: bytes) -> bool:
        """Whether text that starts with `head` is meant as this format, sound or not.

        `head` is at most 64 KiB of the text, after decompression. No reader claims what another
        one's files look like.
        """
        ...

    def open(self, source: Source, options: ReadOptions, bad: BadRows) -> RowStream:
        """One pass over `source`. Reads no more than its head yet.

        `InputError` for options that do not suit the format.
        """
        ...


@runtime_checkable
class FolderReader(Protocol):
    """A reader of a format whose traces may be folders of several files."""

    def open_folder(self, sources: list[Source], options: ReadOptions, bad: BadRows) -> RowStream:
        """One pass over a folder's files, which come in the order of their names."""
        ...


# Module and class of each reader, in the order in which they are asked: what is most common first.
# No file is recognised by two of them, so that the order decides nothing else.
FORMATS: tuple[tuple[str, str], ...] = (
    ("traces.mooncake", "MooncakeReader"),
    ("traces.native", "NativeReader"),
    ("traces.ragpulse", "RAGPulseReader"),
    ("traces.weka", "WekaReader"),
    ("traces.bailian", "BailianReader"),
    ("traces.lmcache", "LMCacheReader"),
    ("traces.lengths_csv", "AzureReader"),
    ("traces.lengths_csv", "BurstGPTReader"),
    ("traces.hisim", "HiSimReader"),
    ("traces.sglang_dump", "SGLangDumpReader"),
    ("traces.sglang_dump", "SGLangLogReader"),
    ("traces.token_ids", "TokenIdsReader"),
    ("traces.sharegpt", "ShareGPTReader"),
    ("traces.openai_log", "OpenAILogReader"),
    ("traces.loogle", "LooGLEReader"),
)


def readers() -> Iterator[TraceReader]:
    """A reader of each format, in the order of `FORMATS`; each is imported when it is asked for."""
    for module, name in FORMATS:
        yield getattr(importlib.import_module(module), name)()


# Formats that may hold texts, which take a tokenizer.
TEXT_FORMATS = ("sglang-dump", "sglang-log", "sharegpt", "openai-log", "loogle")
# Characters of a file's start that the message on an unknown format shows.
SHOWN_START = 30

_ENDINGS = re.compile(r"(\.jsonl?|\.csv|\.log|\.txt)?(\.gz|\.zst|\.zstd)?$")
_DOCUMENT = re.compile(r"(readme|licen[cs]e)\b.*|.*\.(md|txt)|\..*", re.IGNORECASE)
_IN_FOLDER = re.compile(r"[^.].*\.(jsonl?|csv|log|pkl|gz|zst|zstd)")


class Trace:
    """One trace, whose rows and requests can be streamed; from a pipe, once.

    `name` is the file's name without folder and endings. `facts` is what the latest pass over the
    requests found, and `bad` what the latest pass left out: they fill while that pass runs.
    """

    def __init__(
        self,
        path: str,
        reader: TraceReader,
        sources: list[Source],
        open_stream: Callable[[BadRows], RowStream],
        *,
        speed: float,
        on_error: OnError,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.name = short_name(path)
        self.path = path
        self.format = reader.name
        self.speed = speed
        self.on_error = on_error
        self.facts = TraceFacts()
        self._sources = sources
        self._open_stream = open_stream
        # What is to be said of the way it was opened.
        self._notes = notes
        # What messages call it.
        self.shown = "standard input" if path == "-" else path
        self.bad = BadRows(self.shown, skip=on_error == "skip")
        stream = open_stream(self.bad)
        self.layout: Layout = stream.layout
        self.hints = hints_of(stream)

    @property
    def block_tokens(self) -> int:
        """Tokens of a block; 1: ids are token ids; 0: pieces of any length, or no ids."""
        return self.layout.block_tokens

    @property
    def rereadable(self) -> bool:
        """Whether more than one pass is possible; a pipe allows one."""
        return all(source.rereadable for source in self._sources)

    def stream(self) -> RowStream:
        """A new pass over the rows as the trace states them, for what does not need pages."""
        self.bad = BadRows(self.shown, skip=self.on_error == "skip")
        for source in self._sources:
            source.bad = self.bad
        stream = self._open_stream(self.bad)
        return Noted(stream, self._notes) if self._notes else stream

    def requests(
        self,
        page_size_tokens: int,
        pages: Pages = "full",
        times_ms: array[float] | None = None,
    ) -> Iterator[Request]:
        """Yield every request in file order, cut into pages of `page_size_tokens`.

        `pages` "full" has floor(prompt / page size) pages a prompt; "partial" also its last, partly
        filled one. Times are divided by the trace's speed; `times_ms` gets them as they were (see
        `traces.stream.RequestStream`). A page size that does not suit is an
        `InputError` at the call, a malformed row while iterating.
        """
        cutter = cutter_for(self.layout, page_size_tokens, pages)
        facts = TraceFacts()
        requests = RequestStream(
            self.shown,
            self.stream(),
            self.bad,
            cutter,
            page_size_tokens,
            self.speed,
            facts,
            lambda: self.sha256,
            times_ms,
        ).requests()
        self.facts = facts
        return requests

    @property
    def sha256(self) -> str:
        """SHA-256 of the text after decompression, hexadecimal; of a folder, of its files' ones.

        Free after a complete pass; otherwise the file is read for it. From a pipe it is known only
        after a complete pass (an `InputError` before).
        """
        if len(self._sources) == 1:
            return self._sources[0].sha256()
        lines = "".join(f"{source.sha256()}\n" for source in self._sources)
        return hashlib.sha256(lines.encode()).hexdigest()


def open_trace(
    path: str | os.PathLike[str],
    *,
    block_tokens: int | None = None,
    speed: float = 1.0,
    progress: Progress | None = None,
    tokenizer: str = "",
    on_error: OnError = "stop",
    prefixes: Prefixes | None = None,
) -> Trace:
    """Open a trace, plain or compressed with gzip or zstd; "-" is standard input.

    A folder is one trace where its format says so. Only the first bytes are read: to tell the
    format, and to refuse what cannot be one (`InputError`).

    `block_tokens` is the size of the blocks that ids stand for, in formats that do not say it
    (None or 0: the format's usual one). `speed` 2 halves all times between arrivals. `tokenizer` is
    a Hugging Face tokenizer.json, for formats that hold text. `on_error` says what becomes of
    malformed rows: "stop" is an `InputError` at the first, "skip" leaves them out, counts them and
    says so in the warnings. `prefixes` makes up what prompts share, in formats that have lengths
    only (an `InputError` in others). `progress(bytes_done, bytes_total)` is called during each
    pass; the total is None for a pipe.
    """
    if block_tokens is not None and block_tokens < 0:
        raise InputError(f"block size is {block_tokens}: it must be at least 1 token")
    if on_error not in ("stop", "skip"):
        raise InputError(f"on_error is {on_error!r}: it must be 'stop' or 'skip'")
    check_speed(speed)
    options = ReadOptions(block_tokens or None, tokenizer)
    path = os.fspath(path)
    sources = _folder(path, progress) if path != "-" and os.path.isdir(path) else None
    source = sources[0] if sources else Source(path, progress)
    try:
        reader = _reader_of(source)
        notes = _notes_on(path, sources, reader, options)
        if sources is None or len(sources) == 1:
            return Trace(
                path,
                reader,
                [source],
                lambda bad: _with(prefixes, reader.open(source, options, bad)),
                speed=speed,
                on_error=on_error,
                notes=notes,
            )
        if not isinstance(reader, FolderReader):
            raise InputError(
                f"{path}: is a folder of {len(sources)} files; a trace in the format of its first, "
                f"{os.path.basename(source.path)} ({reader.name}), is a single file"
            )
        return Trace(
            path,
            reader,
            sources,
            lambda bad: _with(prefixes, reader.open_folder(sources, options, bad)),
            speed=speed,
            on_error=on_error,
            notes=notes,
        )
    except BaseException:
        source.close()
        raise


def _with(prefixes: Prefixes | None, stream: RowStream) -> RowStream:
    if prefixes is None:
        return stream
    from traces.synthetic_prefixes import synthetic_prefixes

    return synthetic_prefixes(stream, **prefixes._asdict())


def _reader_of(source: Source) -> TraceReader:
    head = source.head()
    if not head.strip():
        raise InputError(f"{source.name}: the trace is empty")
    for reader in readers():
        if reader.recognises(head):
            return reader
    kind = "binary data" if _is_binary(head) else "text of an unknown format"
    start = head.strip()[:SHOWN_START].decode("utf-8", "replace").partition("\n")[0]
    shown = "" if _is_binary(head) else f" (it starts with {start!r})"
    known = ", ".join(reader.name for reader in readers())
    raise InputError(
        f"{source.name}, line 1: {kind}{shown}; docs/traces.md describes those that are known: "
        f"{known}"
    )


def _notes_on(
    path: str, sources: list[Source] | None, reader: TraceReader, options: ReadOptions
) -> tuple[str, ...]:
    """What was given but is not used: a tokenizer, and what else is in a folder."""
    notes: list[str] = []
    if options.tokenizer and reader.name not in TEXT_FORMATS:
        notes.append(f"the tokenizer is not used: a {reader.name} trace holds no texts")
    if sources is not None:
        read = {os.path.basename(source.path) for source in sources}
        others = sorted(
            name for name in os.listdir(path) if name not in read and not _DOCUMENT.fullmatch(name)
        )
        if others:
            more = f" and {len(others) - 3:,} more" if len(others) > 3 else ""
            notes.append(
                f"of the folder, {', '.join(sorted(read)[:3])}{', ...' if len(read) > 3 else ''} "
                f"{'was' if len(read) == 1 else 'were'} read, but not "
                f"{', '.join(others[:3])}{more}"
            )
    return tuple(notes)


def _folder(path: str, progress: Progress | None) -> list[Source]:
    """The trace files of a folder, in the order of their names."""
    try:
        names = sorted(name for name in os.listdir(path) if _IN_FOLDER.fullmatch(name))
    except OSError as error:
        raise InputError(f"{path}: cannot be opened: {error.strerror}") from None
    files = [each for name in names if os.path.isfile(each := os.path.join(path, name))]
    if not files:
        raise InputError(f"{path}: is a folder without trace files (.json, .jsonl, .csv)")
    if progress is None:
        return [Source(file) for file in files]
    done_bytes = [0] * len(files)
    total_bytes = sum(os.path.getsize(file) for file in files)

    def progress_of(index: int) -> Progress:
        def tell(done: int, total: int | None) -> None:
            done_bytes[index] = done
            progress(sum(done_bytes), total_bytes)

        return tell

    return [Source(file, progress_of(index)) for index, file in enumerate(files)]


def _is_binary(head: bytes) -> bool:
    return b"\0" in head or head[:1000].decode("utf-8", "replace").count("\ufffd") > 1


def short_name(path: str) -> str:
    """What a trace is called: its file's name without folder and endings."""
    if path == "-":
        return "stdin"
    return _ENDINGS.sub("", os.path.basename(os.path.abspath(path))) or path
