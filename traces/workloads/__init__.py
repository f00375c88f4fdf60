"""Every workload that can be generated, by its name. Nothing here knows a file or a format.

stream = WORKLOADS["multi-turn"].generate(MultiTurnOptions(clients=8))
write(stream, "talk.jsonl.gz")
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from traces.generator import RANGES, AgentOptions, generate_agents
from traces.options import Ranges
from traces.rows import RowStream
from traces.workloads import long_context, mix, multi_turn, prefixes, shared_prefix


@dataclass(frozen=True, slots=True)
class Workload:
    """One kind of traffic. The same options give the same rows, on every machine."""

    name: str
    describes: str
    # A frozen dataclass, all of whose fields have defaults; and what each may be.
    options: type
    ranges: Ranges
    # The rows for options of that class.
    generate: Callable[[Any], RowStream]


WORKLOADS: dict[str, Workload] = {
    each.name: each
    for each in (
        Workload(
            "multi-turn",
            "clients that talk in rounds, each prompt with all that was said (closed loop)",
            multi_turn.MultiTurnOptions,
            multi_turn.MULTI_TURN_RANGES,
            multi_turn.generate,
        ),
        Workload(
            "shared-prefix",
            "groups of requests with one system prompt each, popular alike or by zipf's law",
            shared_prefix.SharedPrefixOptions,
            shared_prefix.SHARED_PREFIX_RANGES,
            shared_prefix.generate,
        ),
        Workload(
            "long-context",
            "long documents with several questions each",
            long_context.LongContextOptions,
            long_context.LONG_CONTEXT_RANGES,
            long_context.generate,
        ),
        Workload(
            "mix",
            "users who come back after a while, most of them for few rounds (closed loop)",
            mix.MixOptions,
            mix.MIX_RANGES,
            mix.generate,
        ),
        Workload(
            "alternating-prefixes",
            "two prompts in turn, far apart: the latency of a restore (mini-HiCache)",
            prefixes.AlternatingOptions,
            prefixes.ALTERNATING_RANGES,
            prefixes.generate_alternating,
        ),
        Workload(
            "rotating-prefixes",
            "some prompts in rotation, all at once: throughput (mini-HiCache)",
            prefixes.RotatingOptions,
            prefixes.ROTATING_RANGES,
            prefixes.generate_rotating,
        ),
        Workload(
            "agents",
            "multi-turn agents that share system prompts, with tools and people (closed loop)",
            AgentOptions,
            RANGES,
            generate_agents,
        ),
    )
}
