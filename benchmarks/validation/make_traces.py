"""Makes the traces of the validation: python benchmarks/validation/make_traces.py CONVERSATION

CONVERSATION is Mooncake's `conversation_trace.jsonl`. Of it: the conversations (requests that share
their third block of 512 tokens) with three turns or more, in the order in which they begin, prompts
of at most 20,480 tokens, until there are 44 requests; their arrivals are spread evenly over the
slice in their order, and answers are cut to 96 tokens, so that a run of half a minute is not all
tail. `conversation-long` is another such slice, of conversations whose later turns bring 3,072 new
tokens or more each on average, without the first fifteen of them. The others are made up by
`hicache trace generate`, with a seed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from traces.convert import write
from traces.workloads import WORKLOADS

HERE = Path(__file__).resolve().parent / "traces"
BLOCK_TOKENS = 512


@dataclasses.dataclass(frozen=True, slots=True)
class Slice:
    """Which conversations of three turns or more are taken, and how they come."""

    most_prompt_tokens: int
    most_output_tokens: int
    apart_ms: int
    requests: int = 44  # at most
    least_new_tokens: int = 0  # of a later turn, on average over those of its conversation
    skipped: int = 0  # of the conversations that would do


SLICES = {
    "conversation": Slice(20_480, 96, 600),
    "conversation-long": Slice(16_384, 48, 680, least_new_tokens=3072, skipped=15),
}
MADE_UP: dict[str, tuple[str, dict[str, Any]]] = {
    "multi-turn": (
        "multi-turn",
        {
            "clients": 24, "parallel": 4, "rounds": 5, "request_tokens": 2048,
            "question_tokens": 640, "output_tokens": 40, "think_s": 0.5, "order": "fifo",
            "seed": 11,
        },
    ),
    "multi-turn-long": (
        "multi-turn",
        {
            "clients": 16, "parallel": 6, "rounds": 3, "request_tokens": 1280,
            "question_tokens": 2816, "output_tokens": 224, "think_s": 1.5, "order": "fifo",
            "seed": 13,
        },
    ),
    "shared": (
        "shared-prefix",
        {
            "groups": 16, "requests_per_group": 6, "system_prompt_tokens": 6144,
            "question_tokens": 320, "output_tokens": 40, "popularity": "zipf", "zipf": 0.6,
            "rate_per_s": 5.0, "seed": 12,
        },
    ),
    "shared-long": (
        "shared-prefix",
        {
            "groups": 24, "requests_per_group": 4, "system_prompt_tokens": 1280,
            "question_tokens": 2048, "output_tokens": 64, "popularity": "zipf", "zipf": 0.8,
            "rate_per_s": 4.2, "seed": 92,
        },
    ),
    "thrash": (
        "shared-prefix",
        {
            "groups": 24, "requests_per_group": 3, "system_prompt_tokens": 4096,
            "question_tokens": 256, "output_tokens": 32, "popularity": "uniform",
            "rate_per_s": 3.2, "seed": 13,
        },
    ),
    "saturated": (
        "shared-prefix",
        {
            "groups": 20, "requests_per_group": 8, "system_prompt_tokens": 4096,
            "question_tokens": 512, "output_tokens": 64, "popularity": "zipf", "zipf": 0.8,
            "rate_per_s": 40.0, "seed": 14,
        },
    ),
}  # fmt: skip


def conversation(source: Path, wanted: Slice) -> list[dict[str, Any]]:
    """The slice described above."""
    groups: dict[int, list[dict[str, Any]]] = defaultdict(list)
    with source.open() as lines:
        for line in lines:
            row = json.loads(line)
            if len(row["hash_ids"]) > 3 and row["input_length"] <= wanted.most_prompt_tokens:
                groups[row["hash_ids"][2]].append(row)
    suitable = [  # in the order of their first requests
        turns
        for turns in groups.values()
        if len(turns) >= 3 and new_tokens(turns) >= wanted.least_new_tokens
    ]
    rows: list[dict[str, Any]] = []
    for turns in suitable[wanted.skipped :]:
        if len(rows) + len(turns) <= wanted.requests:
            rows += turns
    rows.sort(key=lambda row: row["timestamp"])
    known: dict[int, int] = {}
    return [
        {
            "timestamp": place * wanted.apart_ms,
            "input_length": row["input_length"],
            "output_length": min(row["output_length"], wanted.most_output_tokens),
            "hash_ids": [known.setdefault(each, len(known)) for each in row["hash_ids"]],
        }
        for place, row in enumerate(rows)
    ]


def new_tokens(turns: list[dict[str, Any]]) -> float:
    """Tokens of blocks that no earlier turn had, a later turn's average."""
    seen, fresh = set(turns[0]["hash_ids"]), 0
    for row in turns[1:]:
        fresh += len(set(row["hash_ids"]) - seen)
        seen |= set(row["hash_ids"])
    return fresh * BLOCK_TOKENS / (len(turns) - 1)


def main() -> None:
    """Write all of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("conversation", type=Path)
    options = parser.parse_args()
    HERE.mkdir(exist_ok=True)
    for name, wanted in SLICES.items():
        rows = conversation(options.conversation, wanted)
        text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
        (HERE / f"{name}.jsonl").write_text(text)
    for name, (kind, given) in MADE_UP.items():
        workload = WORKLOADS[kind]
        trace = workload.generate(dataclasses.replace(workload.options(), **given))
        place = HERE / f"{name}.jsonl"
        place.unlink(missing_ok=True)
        write(trace, place, "hicache")


if __name__ == "__main__":
    main()
