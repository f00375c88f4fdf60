"""Makes the traces of the validation: python benchmarks/validation/make_traces.py CONVERSATION

CONVERSATION is Mooncake's `conversation_trace.jsonl`. Of it: the conversations (requests that share
their third block of 512 tokens) with three turns or more, in the order in which they begin, prompts
of at most 20,480 tokens, until there are 44 requests; their arrivals are spread evenly over the
slice in their order, and answers are cut to 96 tokens, so that a run of half a minute is not all
tail. The others are made up by `hicache trace generate`, with a seed.
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
MOST_PROMPT_TOKENS, MOST_OUTPUT_TOKENS, REQUESTS, APART_MS = 20_480, 96, 44, 600
MADE_UP: dict[str, tuple[str, dict[str, Any]]] = {
    "multi-turn": (
        "multi-turn",
        {
            "clients": 24, "parallel": 6, "rounds": 5, "request_tokens": 2048,
            "question_tokens": 640, "output_tokens": 40, "seed": 11,
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


def conversation(source: Path) -> list[dict[str, Any]]:
    """The slice described above."""
    groups: dict[int, list[dict[str, Any]]] = defaultdict(list)
    with source.open() as lines:
        for line in lines:
            row = json.loads(line)
            if len(row["hash_ids"]) > 3 and row["input_length"] <= MOST_PROMPT_TOKENS:
                groups[row["hash_ids"][2]].append(row)
    rows: list[dict[str, Any]] = []
    for turns in groups.values():  # in the order of their first requests
        if len(turns) >= 3 and len(rows) + len(turns) <= REQUESTS:
            rows += turns
        if len(rows) == REQUESTS:
            break
    rows.sort(key=lambda row: row["timestamp"])
    known: dict[int, int] = {}
    return [
        {
            "timestamp": place * APART_MS,
            "input_length": row["input_length"],
            "output_length": min(row["output_length"], MOST_OUTPUT_TOKENS),
            "hash_ids": [known.setdefault(each, len(known)) for each in row["hash_ids"]],
        }
        for place, row in enumerate(rows)
    ]


def main() -> None:
    """Write all of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("conversation", type=Path)
    options = parser.parse_args()
    HERE.mkdir(exist_ok=True)
    rows = conversation(options.conversation)
    text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
    (HERE / "conversation.jsonl").write_text(text)
    for name, (kind, given) in MADE_UP.items():
        workload = WORKLOADS[kind]
        trace = workload.generate(dataclasses.replace(workload.options(), **given))
        place = HERE / f"{name}.jsonl"
        place.unlink(missing_ok=True)
        write(trace, place, "hicache")


if __name__ == "__main__":
    main()
