"""Checked rows become requests, from whatever format, page by page. It trusts its rows.

Arrival times count from the first row that has one, and a trace's speed divides all times:
`arrival_ns = round((timestamp - first) * 1e6 / speed)`, `delay_ns = round(delay * 1e6 / speed)`.
Either of more than ten years is an `InputError`.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from sys import intern
from typing import NoReturn

from hicache.errors import InputError
from hicache.requests import Request
from traces.cut import Cutter
from traces.facts import TraceFacts, no_id_to_the_end
from traces.rows import BadRows, Row, RowStream, rows_were

# Of the rows that were left out, this many are named in the warning.
NAMED_BAD_ROWS = 3
YEAR_NS = 365 * 86_400 * 10**9
# No arrival is later, and no think time longer: results hold nanoseconds in 64 bits.
LONGEST_NS = 10 * YEAR_NS


def check_speed(speed: float) -> None:
    """`InputError` unless a trace can be replayed at `speed`."""
    if not (math.isfinite(speed) and 1e-6 <= speed <= 1e6):
        raise InputError(f"speed is {speed}: it must lie between 0.000001 and 1,000,000")


def at_speed(time_ms: float, speed: float) -> int:
    """Milliseconds of a trace in nanoseconds of its replay, as `RequestStream` has them."""
    return round(time_ms * 1e6 / speed)


@dataclass(slots=True)
class RequestStream:
    """One pass: the rows of `stream` become requests, and `facts` says what was in them.

    `finish` is called at the end of the trace and returns its SHA-256. `times_ms`, where somebody
    asks for it, gets two numbers a request: what `arrival_ns` and `delay_ns` make of them.
    """

    name: str
    stream: RowStream
    bad: BadRows
    cutter: Cutter
    page_size_tokens: int
    speed: float
    facts: TraceFacts
    finish: Callable[[], str]
    times_ms: array[float] | None = None

    def requests(self) -> Iterator[Request]:
        """Yield the requests in order; the facts are kept up to date, batch by batch."""
        facts, cutter = self.facts, self.cutter
        cut_row, page_size_tokens = cutter.cut_row, self.page_size_tokens
        speed = self.speed
        number = 0
        start_ms: float | None = None
        unchained = False
        end_key = 0  # keys from here on are new: cutters number pages in order of appearance
        for rows, lines in self.stream.batches():
            first_number = number
            prompt_pages = ideal_pages = ideal_tokens = 0
            requests: list[Request] = []
            for row in rows:
                tokens, timestamp = row.input_length, row.timestamp
                runs, pages, ideal, output_runs = cut_row(row)
                if runs:  # new pages are the last of a prompt
                    start, count = runs[-1]
                    if start + count > end_key:
                        end_key = start + count
                if output_runs:
                    for start, count in output_runs:
                        facts.known_answer_pages += max(0, min(count, end_key - start))
                        end_key = max(end_key, start + count)
                if timestamp is None:
                    arrival_ns = -1
                elif start_ms is None:
                    start_ms = facts.first_timestamp_ms = timestamp
                    arrival_ns = 0
                else:
                    arrival_ns = round((timestamp - start_ms) * 1e6 / speed)
                delay_ns = round(row.delay * 1e6 / speed) if row.delay else 0
                if arrival_ns > LONGEST_NS or delay_ns > LONGEST_NS:
                    self._too_long(lines[number - first_number], arrival_ns, delay_ns)
                requests.append(
                    Request(
                        number,
                        arrival_ns,
                        tokens,
                        row.output_length,
                        runs,
                        pages,
                        ideal,
                        intern(row.session),  # one text a session, not one a request
                        0,
                        output_runs,
                        row.after,
                        delay_ns,
                        row.cached_tokens,
                    )
                )
                if not unchained and cutter.unchained:
                    unchained = True
                    facts.warnings.append(
                        f"line {lines[number - first_number]}: an id follows another id than "
                        "before, so ids are not prefix-chained; blocks are told apart by their "
                        "whole prefix"
                    )
                number += 1
                prompt_pages += pages
                ideal_pages += ideal
                ideal_tokens += min(ideal * page_size_tokens, tokens)
            facts.prompt_pages += prompt_pages
            facts.ideal_pages += ideal_pages
            facts.ideal_tokens += ideal_tokens
            self._count(rows, number)
            if self.times_ms is not None:
                for row in rows:
                    since_ms = 0.0 if row.timestamp is None else row.timestamp - (start_ms or 0)
                    self.times_ms.extend((since_ms, row.delay or 0))
            yield from requests
        if not number:
            raise InputError(
                f"{self.name}: the trace is empty: not one request in it{self._left()}"
            )
        self._end()

    def _too_long(self, line: int, arrival_ns: int, delay_ns: int) -> NoReturn:
        field, time_ns = ("timestamp", arrival_ns)
        what = "is {} years after the first one's"
        if arrival_ns <= LONGEST_NS:
            field, time_ns = "delay", delay_ns
            what = "is {} years"
        years = f"{time_ns / YEAR_NS:,.0f}"
        at_speed = f" at speed {self.speed:g}" if self.speed != 1 else ""
        reason = f"{what.format(years)}{at_speed}; is it in another unit?"
        self.bad.fatal(line, field, reason)

    def _count(self, rows: list[Row], number: int) -> None:
        facts, cutter = self.facts, self.cutter
        facts.requests = number
        lengths = [row.input_length for row in rows]
        facts.prompt_tokens += sum(lengths)
        facts.longest_prompt_tokens = max(facts.longest_prompt_tokens, *lengths)
        facts.output_tokens += sum([row.output_length for row in rows])
        facts.answers += sum([row.output_ids is not None for row in rows])
        facts.blocks = cutter.blocks
        facts.unique_blocks = cutter.unique_blocks
        facts.ideal_blocks = cutter.ideal_blocks
        facts.requests_without_tail_id = cutter.rows_without_tail
        facts.bad_rows = self.bad.count
        for row in reversed(rows):
            if row.timestamp is not None:
                facts.last_timestamp_ms = row.timestamp
                break

    def _end(self) -> None:
        facts = self.facts
        if facts.requests_without_tail_id:
            facts.warnings.append(no_id_to_the_end(facts.requests_without_tail_id, facts.requests))
        facts.warnings += self.stream.notes
        facts.bad_rows = self.bad.count
        if self.bad.count:
            facts.warnings.append(self._left().removeprefix("; "))
        facts.sha256 = self.finish()
        facts.complete = True

    def _left(self) -> str:
        """What was left out, "" if nothing was."""
        bad = self.bad
        if not bad.count:
            return ""
        # Of what is read together, undecodable rows are found first.
        listed = bad.listed
        if len({each.file for each in listed}) == 1:
            listed = sorted(listed, key=lambda each: each.line)
        named = "; ".join(
            f"{each.file + ', ' if each.file != self.name else ''}{each}"
            for each in listed[:NAMED_BAD_ROWS]
        )
        more = "; ..." if bad.count > NAMED_BAD_ROWS else ""
        return f"; {bad.count:,} {rows_were(bad.count)} left out: {named}{more}"
