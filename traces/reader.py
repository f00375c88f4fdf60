"""The way in: `open_trace` tells a trace's format from its content and streams its requests.

A format is a `TraceReader` in `READERS`; nothing else knows which formats there are. A trace
is streamed: never held as a whole.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Protocol

from hicache.errors import InputError
from hicache.requests import Request
from traces.blocks import Pages
from traces.facts import TraceFacts
from traces.mooncake import MooncakeReader
from traces.source import Progress, Source
from traces.stream import ReadPlan, check_speed


class TraceReader(Protocol):
    """One format. Readers have no state: what a pass learns is in its `facts`."""

    @property
    def name(self) -> str:
        """Short name for options and tables."""
        ...

    @property
    def describes(self) -> str:
        """What the format is, for the message about a file that is none of them."""
        ...

    def recognises(self, head: bytes) -> bool:
        """Whether text that starts with `head` is meant as this format, sound or not."""
        ...

    def requests(self, source: Source, plan: ReadPlan, facts: TraceFacts) -> Iterator[Request]:
        """Yield the requests in file order and fill `facts`; `InputError` for what is malformed.

        A plan that does not suit the format is refused at the call, before anything is read.
        """
        ...


# In the order in which they are asked.
READERS: tuple[TraceReader, ...] = (MooncakeReader(),)


class Trace:
    """One trace, whose requests can be streamed; from a pipe, once.

    `name` is the file's name without folder and endings. `facts` is what the latest pass found: it
    fills while that pass runs.
    """

    def __init__(
        self, source: Source, reader: TraceReader, block_tokens: int, speed: float
    ) -> None:
        self.name = _short_name(source.path)
        self.path = source.path
        self.format = reader.name
        self.block_tokens = block_tokens
        self.speed = speed
        self.facts = TraceFacts()
        self._source = source
        self._reader = reader

    def requests(self, page_size_tokens: int, pages: Pages = "full") -> Iterator[Request]:
        """Yield every request in file order, cut into pages of `page_size_tokens`.

        `pages` "full" has floor(prompt / page size) pages a prompt; "partial" also its last, partly
        filled one. `arrival_ns` counts from the first request and is divided by the trace's speed.
        A page size that does not suit is an `InputError` at the call, a malformed line while
        iterating.
        """
        plan = ReadPlan(page_size_tokens, pages, self.block_tokens, self.speed)
        facts = TraceFacts()
        requests = self._reader.requests(self._source, plan, facts)
        self.facts = facts
        return requests

    @property
    def sha256(self) -> str:
        """SHA-256 of the text after decompression, hexadecimal.

        Free after a complete pass; otherwise the file is read for it. From a pipe it is known only
        after a complete pass (an `InputError` before).
        """
        if self.facts.complete:
            return self.facts.sha256
        if not self._source.rereadable:
            raise InputError(
                f"{self._source.name}: its SHA-256 is known once it was read to its end"
            )
        return self._source.sha256()


def open_trace(
    path: str | os.PathLike[str],
    *,
    block_tokens: int = 512,
    speed: float = 1.0,
    progress: Progress | None = None,
) -> Trace:
    """Open a trace, plain or compressed with gzip or zstd; "-" is standard input.

    Only its first bytes are read: to tell its format, and to refuse what cannot be one
    (`InputError`). `block_tokens` is the size of the blocks that ids stand for, in formats that do
    not say it. `speed` 2 halves all times between arrivals. `progress(bytes_done, bytes_total)` is
    called during each pass; the total is None for a pipe.
    """
    if block_tokens < 1:
        raise InputError(f"block size is {block_tokens}: it must be at least 1 token")
    check_speed(speed)
    source = Source(path, progress)
    head = source.head()
    if not head.strip():
        source.close()
        raise InputError(f"{source.name}: the trace is empty")
    for reader in READERS:
        if reader.recognises(head):
            return Trace(source, reader, block_tokens, speed)
    source.close()
    kind = "binary data" if _is_binary(head) else "text of an unknown format"
    known = "; ".join(reader.describes for reader in READERS)
    raise InputError(f"{source.name}, line 1: {kind}; a trace is one of: {known}")


def _is_binary(head: bytes) -> bool:
    return b"\0" in head or head[:1000].decode("utf-8", "replace").count("\ufffd") > 1


def _short_name(path: str) -> str:
    if path == "-":
        return "stdin"
    return re.sub(r"(\.jsonl?|\.csv)?(\.gz|\.zst|\.zstd)?$", "", os.path.basename(path)) or path
