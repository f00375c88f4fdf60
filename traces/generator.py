"""Seeded traffic of multi-turn agents that share system prompts.

    session   [system prompt, shared by rank][task]  -> answer
              [......... all of the above .........][answer][tool output]  -> answer
              [...................... all of that ......................][answer][user message] ...

It promises the same rows for the same options and seed, on every machine. It models no server: how
long an answer takes is an option, not an outcome. A row has the time that follows from that, and
names the row it waits for, so that a replay can close the loop.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from hicache.errors import InputError
from traces.draws import Draws
from traces.made import MadeRows
from traces.options import LARGEST_SEED, check_options
from traces.outfile import write_lines
from traces.rows import Layout, Row, RowStream
from traces.writers import MooncakeWriter


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """What the traffic is like. A bad value is an `InputError` that names the option.

    A `median` and its `sigma` are those of a lognormal distribution: sigma 0 always gives the
    median, sigma 1 a mean of 1.65 medians, with one draw in six above 2.7 medians.
    """

    seed: int = 1
    # Sessions start by a Poisson process at this rate; what would arrive after `hours` is not
    # written.
    hours: float = 1.5
    sessions_per_hour: float = 400.0

    # Agents come with one of these system prompts, the k-th most popular with weight 1 / k**zipf.
    system_prompts: int = 16
    system_prompt_zipf: float = 1.0
    system_prompt_median_tokens: float = 6000.0
    system_prompt_sigma: float = 0.5

    # A session ends after each turn with probability 1 / turns_mean, or when its next prompt would
    # be too long.
    turns_mean: float = 24.0
    longest_prompt_tokens: int = 40_000
    task_median_tokens: float = 700.0
    task_sigma: float = 1.0
    output_median_tokens: float = 120.0
    output_sigma: float = 0.8
    tool_output_median_tokens: float = 550.0
    tool_output_sigma: float = 1.2

    # After an answer, a person writes back with this probability; otherwise a tool reports.
    person_fraction: float = 0.2
    message_median_tokens: float = 80.0
    message_sigma: float = 0.9
    # The pause before the next prompt: a tool's run, or a person's reading and thinking.
    tool_median_s: float = 25.0
    tool_sigma: float = 1.4
    person_median_s: float = 180.0
    person_sigma: float = 1.4
    # The pause starts after the answer: this long after the prompt, plus this for each output
    # token.
    first_token_ms: float = 500.0
    output_token_ms: float = 20.0

    # Of the blocks in a file that has such; rows have pieces of any length.
    block_tokens: int = 512

    def __post_init__(self) -> None:
        check_options(self, RANGES)


# The least and the most that each option may be.
RANGES: dict[str, tuple[float, float]] = {
    "seed": (0, LARGEST_SEED),
    "hours": (0.001, 10_000),
    "sessions_per_hour": (0.001, 1e6),
    "system_prompts": (1, 100_000),
    "system_prompt_zipf": (0, 10),
    "system_prompt_median_tokens": (1, 1e6),
    "system_prompt_sigma": (0, 4),
    "turns_mean": (1, 10_000),
    "longest_prompt_tokens": (1, 10_000_000),
    "task_median_tokens": (1, 1e6),
    "task_sigma": (0, 4),
    "output_median_tokens": (1, 1e6),
    "output_sigma": (0, 4),
    "tool_output_median_tokens": (1, 1e6),
    "tool_output_sigma": (0, 4),
    "person_fraction": (0, 1),
    "message_median_tokens": (1, 1e6),
    "message_sigma": (0, 4),
    "tool_median_s": (0.001, 1e6),
    "tool_sigma": (0, 4),
    "person_median_s": (0.001, 1e6),
    "person_sigma": (0, 4),
    "first_token_ms": (0, 1e6),
    "output_token_ms": (0, 1e6),
    "block_tokens": (1, 1_000_000),
}


class Turn(NamedTuple):
    """One request to come. Turns sort by arrival, ties by session and turn."""

    arrival_ms: int
    session: int
    turn: int
    prompt_tokens: int
    output_tokens: int
    # The pause since the answer before.
    delay_ms: int


class AgentTraffic:
    """All turns of all sessions, drawn at once: about 100 bytes of memory a request."""

    def __init__(self, options: AgentOptions) -> None:
        self.options = options
        draws = Draws(options.seed)
        self.system_prompt_tokens = [
            draws.tokens(options.system_prompt_median_tokens, options.system_prompt_sigma)
            for _ in range(options.system_prompts)
        ]
        weights = (
            1 / rank**options.system_prompt_zipf for rank in range(1, options.system_prompts + 1)
        )
        shares = list(accumulate(weights))
        end_ms = options.hours * 3_600_000
        self.system_prompt_of: list[int] = []
        self.turns: list[Turn] = []
        start_ms = 0.0
        while True:
            start_ms += draws.exponential(3_600_000 / options.sessions_per_hour)
            if start_ms >= end_ms:
                break
            rank = bisect_left(shares, draws.uniform() * shares[-1])
            session = len(self.system_prompt_of)
            self.system_prompt_of.append(rank)
            self.turns += self._session(draws, session, start_ms, end_ms)
        self.turns.sort()

    def _session(
        self, draws: Draws, session: int, start_ms: float, end_ms: float
    ) -> Iterator[Turn]:
        """The turns of one session that fit into the longest prompt and before the end."""
        options = self.options
        prompt_tokens = self.system_prompt_tokens[self.system_prompt_of[session]]
        prompt_tokens += draws.tokens(options.task_median_tokens, options.task_sigma)
        now_ms = start_ms
        turn = delay_ms = 0
        while now_ms < end_ms and prompt_tokens <= options.longest_prompt_tokens:
            output_tokens = draws.tokens(options.output_median_tokens, options.output_sigma)
            yield Turn(round(now_ms), session, turn, prompt_tokens, output_tokens, delay_ms)
            if draws.happens(1 / options.turns_mean):
                break
            now_ms += options.first_token_ms + output_tokens * options.output_token_ms
            prompt_tokens += output_tokens
            ended_ms = now_ms
            if draws.happens(options.person_fraction):
                now_ms += 1000 * draws.lognormal(options.person_median_s, options.person_sigma)
                prompt_tokens += draws.tokens(options.message_median_tokens, options.message_sigma)
            else:
                now_ms += 1000 * draws.lognormal(options.tool_median_s, options.tool_sigma)
                prompt_tokens += draws.tokens(
                    options.tool_output_median_tokens, options.tool_output_sigma
                )
            delay_ms = round(now_ms - ended_ms)
            turn += 1

    def rows(self) -> Iterator[Row]:
        """The requests, in pieces: system prompts, then questions and answers by row number."""
        said: dict[int, tuple[int, list[int], list[int]]] = {}
        num_prompts = len(self.system_prompt_tokens)
        for number, turn in enumerate(self.turns):
            session = turn.session
            if turn.turn:
                after, ids, lengths = said[session]
            else:
                rank = self.system_prompt_of[session]
                after, ids, lengths = -1, [rank], [self.system_prompt_tokens[rank]]
            question = num_prompts + 2 * number
            ids = [*ids, question]
            lengths = [*lengths, turn.prompt_tokens - sum(lengths)]
            said[session] = (
                number, [*ids, question + 1], [*lengths, turn.output_tokens]
            )  # fmt: skip
            yield Row(
                turn.prompt_tokens,
                turn.output_tokens,
                turn.arrival_ms,
                ids,
                lengths,
                [question + 1],
                [turn.output_tokens],
                session=str(session),
                after=after,
                delay=turn.delay_ms,
            )

    def stream(self) -> RowStream:
        """The rows as a stream."""
        hints = {"workload": "agents", "loop": "closed", "seed": self.options.seed}
        return MadeRows(Layout(0), self.rows, hints)

    def lines(self) -> Iterator[bytes]:
        """The trace in Mooncake's format, line by line, without what only some readers know."""
        writer = MooncakeWriter(self.options.block_tokens, sessions="left out")
        return writer.lines(self.stream())


def generate_agents(options: AgentOptions) -> RowStream:
    """The trace. `InputError` where the options give no request."""
    return _traffic(options).stream()


def write_trace(options: AgentOptions, path: str | os.PathLike[str]) -> int:
    """Write a trace in Mooncake's format to `path`. Return the number of requests.

    It is compressed as the path's ending says and appears complete or not at all. `InputError`
    where the options give no request or the file cannot be written.
    """
    traffic = _traffic(options)
    write_lines(traffic.lines(), path)
    return len(traffic.turns)


def _traffic(options: AgentOptions) -> AgentTraffic:
    traffic = AgentTraffic(options)
    if not traffic.turns:
        raise InputError(
            f"hours {options.hours} at sessions_per_hour {options.sessions_per_hour} gives no "
            f"request with seed {options.seed}: make either larger"
        )
    return traffic
