"""Seeded traffic of multi-turn agents that share system prompts, in Mooncake's trace format.

    session   [system prompt, shared by rank][task]  -> answer
              [......... all of the above .........][answer][tool output]  -> answer
              [...................... all of that ......................][answer][user message] ...

It promises the same bytes for the same options and seed, on every machine, and a file whose ids are
numbered and prefix-chained as Mooncake's are. It models no server: how long an answer takes is an
option, not an outcome.
"""

from __future__ import annotations

import gzip
import math
import os
import random
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import NamedTuple

from hicache.errors import InputError

LARGEST_SEED = (1 << 63) - 1


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

    block_tokens: int = 512

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            number = isinstance(value, int if each.type == "int" else int | float)
            if isinstance(value, bool) or not number or not math.isfinite(value):
                raise InputError(f"{each.name} is {value!r}: it must be {_KINDS[str(each.type)]}")
            least, most = RANGES[each.name]
            if not least <= value <= most:
                raise InputError(f"{each.name} is {value}: it must lie between {least} and {most}")


_KINDS = {"int": "a whole number", "float": "a number"}
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


class _Draws:
    """Random numbers from `Random.random` alone, whose sequence Python guarantees."""

    def __init__(self, seed: int) -> None:
        self.uniform = random.Random(seed).random

    def exponential(self, mean: float) -> float:
        return -math.log(1.0 - self.uniform()) * mean

    def lognormal(self, median: float, sigma: float) -> float:
        radius = math.sqrt(-2.0 * math.log(1.0 - self.uniform()))
        return median * math.exp(sigma * radius * math.cos(2.0 * math.pi * self.uniform()))

    def tokens(self, median: float, sigma: float) -> int:
        return max(1, round(self.lognormal(median, sigma)))

    def happens(self, probability: float) -> bool:
        return self.uniform() < probability


class AgentTraffic:
    """All turns of all sessions, drawn at once: about 100 bytes of memory a request."""

    def __init__(self, options: AgentOptions) -> None:
        self.options = options
        draws = _Draws(options.seed)
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
        self, draws: _Draws, session: int, start_ms: float, end_ms: float
    ) -> Iterator[Turn]:
        """The turns of one session that fit into the longest prompt and before the end."""
        options = self.options
        prompt_tokens = self.system_prompt_tokens[self.system_prompt_of[session]]
        prompt_tokens += draws.tokens(options.task_median_tokens, options.task_sigma)
        now_ms = start_ms
        turn = 0
        while now_ms < end_ms and prompt_tokens <= options.longest_prompt_tokens:
            output_tokens = draws.tokens(options.output_median_tokens, options.output_sigma)
            yield Turn(round(now_ms), session, turn, prompt_tokens, output_tokens)
            if draws.happens(1 / options.turns_mean):
                break
            now_ms += options.first_token_ms + output_tokens * options.output_token_ms
            prompt_tokens += output_tokens
            if draws.happens(options.person_fraction):
                now_ms += 1000 * draws.lognormal(options.person_median_s, options.person_sigma)
                prompt_tokens += draws.tokens(options.message_median_tokens, options.message_sigma)
            else:
                now_ms += 1000 * draws.lognormal(options.tool_median_s, options.tool_sigma)
                prompt_tokens += draws.tokens(
                    options.tool_output_median_tokens, options.tool_output_sigma
                )
            turn += 1

    def lines(self) -> Iterator[bytes]:
        """The trace, line by line.

        Blocks are numbered in the order in which they first appear. A full block that lies within
        the system prompt is shared by its sessions; the others belong to one session. A partly
        filled last block gets an id of its own, never seen again: the next turn's block there holds
        more.
        """
        block_tokens = self.options.block_tokens
        system_ids: dict[int, list[int]] = {}
        session_ids: dict[int, list[int]] = {}
        next_id = 0
        for arrival_ms, session, _, prompt_tokens, output_tokens in self.turns:
            ids = session_ids.get(session)
            if ids is None:
                rank = self.system_prompt_of[session]
                shared = system_ids.get(rank)
                if shared is None:
                    end_id = next_id + self.system_prompt_tokens[rank] // block_tokens
                    shared = system_ids[rank] = list(range(next_id, end_id))
                    next_id = end_id
                ids = session_ids[session] = shared.copy()
            end_id = next_id + prompt_tokens // block_tokens - len(ids)
            ids += range(next_id, end_id)
            next_id = end_id
            named = ids
            if prompt_tokens % block_tokens:
                named = [*ids, next_id]
                next_id += 1
            yield (
                f'{{"timestamp": {arrival_ms}, "input_length": {prompt_tokens}, '
                f'"output_length": {output_tokens}, "hash_ids": {named}}}\n'
            ).encode()


def write_trace(options: AgentOptions, path: str | os.PathLike[str]) -> int:
    """Write a trace to `path`, compressed if that ends in ".gz". Return the number of requests.

    The file appears complete or not at all. Its gzip header holds no name and no time, so that the
    same options give the same bytes (with the same version of zlib; the text is the same with any).
    `InputError` where the options give no request or the file cannot be written.
    """
    traffic = AgentTraffic(options)
    if not traffic.turns:
        raise InputError(
            f"hours {options.hours} at sessions_per_hour {options.sessions_per_hour} gives no "
            f"request with seed {options.seed}: make either larger"
        )
    target = os.fspath(path)
    unfinished = f"{target}.{os.getpid()}.part"
    try:
        with open(unfinished, "wb") as file:
            if target.endswith(".gz"):
                with gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
                    packed.writelines(traffic.lines())
            else:
                file.writelines(traffic.lines())
        os.replace(unfinished, target)
    except OSError as error:
        raise InputError(f"{target}: cannot be written: {error.strerror or error}") from None
    finally:
        if os.path.exists(unfinished):
            os.remove(unfinished)
    return len(traffic.turns)
