"""What is in a trace: one pass over its rows gives a report of plain numbers. It prints nothing.

Sharing is counted in *blocks*: what the trace names by ids of one size, or, where its ids are
tokens or pieces of any length, pages. "Ideal" is what a cache without bounds would hit, that holds
all earlier prompts and their named answers, and "reuse" what an LRU cache needs for parts of that
(`traces.reuse`). What looks wrong with the trace is said by `traces.doubts`.

Memory: `traces.reuse`, the blocks that cutting into pages remembers, and some hundred bytes a
request.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

from hicache.errors import InputError
from traces.blocks import PageCutter
from traces.cut import Runs, add_run, cutter_for
from traces.doubts import Clock, doubts
from traces.joined import JoinedCutter
from traces.made import hints_of
from traces.reader import Trace
from traces.report import Ideal, Needed, Prefix, Recorded, Sharing, TraceInfo, spread
from traces.reuse import Reuse
from traces.rows import Layout, Row, rows_were

# The page size of a replay, unless it is told another.
USUAL_PAGE_TOKENS = 64
MINUTE_MS = 60_000
# Parts of the ideal hits for which the least cache is given.
PARTS = (0.25, 0.5, 0.75, 0.9)
TOP_PREFIXES = 5


def trace_info(trace: Trace, page_size_tokens: int | None = None) -> TraceInfo:
    """Read `trace` once and report. `InputError` for a malformed row, and for no rows at all.

    Pages have `page_size_tokens`; None: 64, a replay's usual size, where that divides the blocks or
    joins them, else as many tokens as a block.
    """
    layout = trace.layout
    if page_size_tokens is None:
        page_size_tokens = _usual_page_tokens(layout.block_tokens)
    count = _Count(layout, page_size_tokens)
    stream = trace.stream()
    for rows, _ in stream.batches():
        for row in rows:
            count.add(row)
    bad = trace.bad
    if not count.requests:
        left = f"; {bad.count:,} {rows_were(bad.count)} left out" if bad.count else ""
        raise InputError(f"{trace.shown}: the trace is empty: not one request in it{left}")
    info = TraceInfo(trace.path, trace.format, trace.sha256, bad_rows=bad.count)
    count.report(info)
    info.hints = dict(hints_of(stream))
    info.notes += stream.notes
    info.listed_bad_rows = [
        f"{each.file}, {each}" if each.file != bad.name else str(each) for each in bad.listed
    ]
    return info


def _usual_page_tokens(block_tokens: int) -> int:
    if block_tokens > 1 and block_tokens % USUAL_PAGE_TOKENS and USUAL_PAGE_TOKENS % block_tokens:
        return block_tokens
    return USUAL_PAGE_TOKENS


class _Count:
    """Takes the rows of a trace, one by one."""

    def __init__(self, layout: Layout, page_size_tokens: int) -> None:
        self._layout = layout
        self._page = page_size_tokens
        self._cutter = cutter_for(layout, page_size_tokens, "full")
        cutter = self._cutter
        self._keys = cutter.keys if isinstance(cutter, PageCutter | JoinedCutter) else None
        self._block = layout.block_tokens if self._keys is not None else page_size_tokens
        self._reuse = Reuse()
        self._clock = Clock()
        self._minutes: dict[int, int] = {}
        self._turns: dict[str, int] = {}
        self._prompts, self._outputs = array("q"), array("q")
        self._think_s = array("d")
        self._waiting = 0
        self._pages = self._hit_pages = self._hit_tokens = self._hit_tokens_in_blocks = 0
        # Tokens that the last, partly filled block of prompts lacks, by its key; and the named
        # prompts, each told from all others.
        self._missing: dict[int, int] = {}
        self._distinct: set[tuple[int, int, tuple[int, ...]]] = set()
        self._named = 0
        self._covered_tokens = 0
        self._recorded = self._recorded_tokens = self._cached = self._recorded_ideal = 0

    @property
    def requests(self) -> int:
        """Rows so far."""
        return len(self._prompts)

    def add(self, row: Row) -> None:
        """Count the next row."""
        self._prompts.append(row.input_length)
        self._outputs.append(row.output_length)
        self._clock.take(row.timestamp)
        if row.timestamp is not None:
            minute = int((row.timestamp - self._clock.first_ms) // MINUTE_MS)
            self._minutes[minute] = self._minutes.get(minute, 0) + 1
        if row.session:
            self._turns[row.session] = self._turns.get(row.session, 0) + 1
        if row.after >= 0:
            self._think_s.append(row.delay / 1000)
            self._waiting += row.timestamp is None
        ideal_tokens = self._add_ids(row) if self._layout.has_ids else 0
        if row.cached_tokens >= 0:
            self._recorded += 1
            self._recorded_tokens += row.input_length
            self._cached += row.cached_tokens
            self._recorded_ideal += ideal_tokens

    def _add_ids(self, row: Row) -> int:
        """Count the blocks of a row. Return the tokens of its prompt in blocks known before."""
        cutter, block, tokens = self._cutter, self._block, row.input_length
        known_before = cutter.ideal_blocks
        prompt_runs, pages, hit_pages, answer_runs = cutter.cut_row(row)
        known = cutter.ideal_blocks - known_before
        self._pages += pages
        self._hit_pages += hit_pages
        self._hit_tokens += hit_pages * self._page
        if self._keys is not None:
            runs: Sequence[tuple[int, int]] = self._keys.latest
            num_blocks = len(row.hash_ids)
            known_tokens = min(known * block, tokens)
        else:
            # Joined again where the answer goes on from the prompt: others may repeat both as one.
            joined: Runs = []
            for first, number in (*prompt_runs, *(answer_runs or ())):
                add_run(joined, first, number)
            runs = joined
            num_blocks = pages
            known_tokens = known * block if row.lengths is None else sum(row.lengths[:known])
        self._hit_tokens_in_blocks += known_tokens
        last_key = self._reuse.add(runs, num_blocks)
        missing = num_blocks * block - tokens
        self._covered_tokens += num_blocks * block - max(0, missing)
        if missing > 0:
            self._missing[last_key] = self._missing.get(last_key, 0) + missing
        self._add_whole(row, runs)
        return known_tokens

    def _add_whole(self, row: Row, runs: Sequence[tuple[int, int]]) -> None:
        """Take the whole prompt, to find it again: its full blocks' key, and what is behind."""
        tokens, block, ids = row.input_length, self._block, row.hash_ids
        full = tokens // block
        rest = tokens - full * block
        if row.lengths is not None:
            if sum(row.lengths) < tokens:
                return
            behind: tuple[int, ...] = ()
            for each, length in zip(reversed(ids), reversed(row.lengths), strict=True):
                if rest <= 0:
                    break
                behind = (each, length, *behind)
                rest -= length
        else:
            if len(ids) * self._layout.block_tokens < tokens:
                return
            behind = tuple(ids[full * block // self._layout.block_tokens :]) if rest else ()
        last_key = _key_at(runs, full - 1)
        self._named += 1
        self._distinct.add((last_key, tokens, behind))

    def report(self, info: TraceInfo) -> None:
        """Fill in what was counted."""
        clock = self._clock
        info.requests = len(self._prompts)
        info.untimed_requests = info.requests - clock.requests
        info.waiting_requests = self._waiting
        info.duration_s = clock.duration_s
        if clock.duration_s:
            info.mean_rate_per_s = clock.requests / clock.duration_s
        info.peak_requests_per_minute = max(self._minutes.values(), default=0)
        info.sessions = len(self._turns)
        info.turns = spread(list(self._turns.values()))
        info.prompt_tokens, info.output_tokens = spread(self._prompts), spread(self._outputs)
        info.think_s = spread(self._think_s) if self._think_s else None
        if self._layout.has_ids:
            self._report_ids(info)
        if self._recorded:
            tokens = self._recorded_tokens
            info.recorded = Recorded(
                self._recorded, tokens, self._cached, self._cached / tokens,
                self._recorded_ideal / tokens,
            )  # fmt: skip
        if self._cutter.unchained and self._layout.block_tokens > 1:
            info.notes.append(
                "ids are not prefix-chained (an id follows different ids); blocks are told apart "
                "by their whole prefix"
            )
        without_tail = self._cutter.rows_without_tail
        info.looks_wrong = doubts(info, clock, self._outputs.count(0), without_tail)

    def _report_ids(self, info: TraceInfo) -> None:
        cutter, reuse, total = self._cutter, self._reuse, info.prompt_tokens.total
        own = self._layout.block_tokens
        hit = cutter.ideal_blocks
        info.ideal = Ideal(
            self._page if own == 1 else own, cutter.blocks, hit,
            hit / max(1, cutter.blocks), self._hit_tokens_in_blocks / total,
        )  # fmt: skip
        info.ideal_pages = Ideal(
            self._page, self._pages, self._hit_pages,
            self._hit_pages / max(1, self._pages), self._hit_tokens / total,
        )  # fmt: skip
        info.counted = {0: "pieces", 1: "pages"}.get(own, "blocks")
        info.unique_blocks = cutter.unique_blocks
        info.reuse_block_tokens = self._block
        if reuse.hits:
            needed = reuse.blocks_for([math.ceil(part * reuse.hits) for part in PARTS])
            info.reuse = tuple(
                Needed(part, blocks, blocks * self._block)
                for part, blocks in zip(PARTS, needed, strict=True)
            )
        info.sharing = self._sharing(info)

    def _sharing(self, info: TraceInfo) -> Sharing:
        block, total = self._block, info.prompt_tokens.total
        tokens_by_use = [0, 0, 0]
        common = 0
        prefixes: list[Prefix] = []
        prompts_at: list[tuple[int, int]] = []
        for shared in self._reuse.shared():
            prompts = shared.prompts
            tokens_by_use[_class_of(prompts)] += prompts * shared.blocks * block
            prompts_at.append((shared.last_key, prompts))
            if prompts == info.requests:
                common += shared.blocks
            if prompts > 1:
                repeated = (prompts - 1) * shared.blocks * block
                prefixes.append(Prefix(prompts, shared.depth_blocks * block, repeated))
        # Partly filled blocks end a stretch: their prompts end there.
        for key, prompts in prompts_at:
            tokens_by_use[_class_of(prompts)] -= self._missing.get(key, 0)
        prefixes.sort(key=lambda each: (-each.repeated_tokens, -each.requests, each.tokens))
        shortest = min(self._prompts)
        once, some, many = (tokens / total for tokens in tokens_by_use)
        return Sharing(
            once, some, many, 1 - self._covered_tokens / total,
            min(common * block, shortest), self._named - len(self._distinct),
            tuple(prefixes[:TOP_PREFIXES]),
        )  # fmt: skip


def _class_of(prompts: int) -> int:
    return 0 if prompts < 2 else 1 if prompts < 10 else 2


def _key_at(runs: Sequence[tuple[int, int]], index: int) -> int:
    """The key at a place of a path; -1 in front of it."""
    for first, count in runs:
        if 0 <= index < count:
            return first + index
        index -= count
    return -1
