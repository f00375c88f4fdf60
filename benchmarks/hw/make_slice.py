"""Cuts the slice of the conversation trace that a real GPU serves in a minute.

    cd benchmarks/hw; python make_slice.py mooncake_conversation.jsonl conversation-300.jsonl

Its prompts have 12,000 tokens on average, and hardly a twelfth of the first 300 can hit: that run
would take seven minutes and restore nothing. So the rule is, in the order of the trace: a request
is taken if its prompt has at most 8,192 tokens, until there are 300; answers are cut to a quarter
(rounded up). Prompts, their blocks and the times between them are the trace's own. It refuses to
replace a slice that differs without --force.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

REQUESTS = 300
MOST_PROMPT_TOKENS = 8192
ANSWER_PART = 4


def sliced(
    lines: Iterable[str],
    requests: int = REQUESTS,
    most_prompt_tokens: int = MOST_PROMPT_TOKENS,
    answer_part: int = ANSWER_PART,
) -> Iterator[str]:
    """The lines of the slice, of a trace in Mooncake's form. Times begin at 0."""
    rows = (json.loads(line) for line in lines if line.strip())
    short = (row for row in rows if row["input_length"] <= most_prompt_tokens)
    begin = None
    for row in islice(short, requests):
        begin = row["timestamp"] if begin is None else begin
        yield json.dumps(
            {
                "timestamp": row["timestamp"] - begin,
                "input_length": row["input_length"],
                "output_length": -(-row["output_length"] // answer_part),
                "hash_ids": row["hash_ids"],
            }
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path, help="the whole trace, uncompressed")
    parser.add_argument("out", type=Path)
    parser.add_argument("--force", action="store_true", help="replace OUT")
    arguments = parser.parse_args()
    with arguments.trace.open() as trace:
        text = "".join(f"{line}\n" for line in sliced(trace))
    out: Path = arguments.out
    if out.exists() and not arguments.force and out.read_text() != text:
        parser.error(f"{out} is there and differs; --force replaces it")
    out.write_text(text)
    print(f"{out}: {text.count(chr(10))} requests, {len(text):,} bytes")


if __name__ == "__main__":
    main()
