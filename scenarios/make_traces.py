"""Writes the traces of the published mini-HiCache runs: `python scenarios/make_traces.py [FOLDER]`.

    rotating-350.jsonl     8 prefixes of 350 tokens in rotation, all requests there from the start
    alternating-N.jsonl    two prefixes of N tokens in alternation, far apart in time

Mooncake JSON lines with blocks of 50 tokens, which divide every prefix. A prefix is a whole prompt
and shares nothing with the others. No randomness: the same bytes each time.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "traces"
BLOCK_TOKENS = 50
OUTPUT_TOKENS = 1

ROTATING_TOKENS = 350
ROTATING_PREFIXES = 8
# 8 to prime (each prefix is seen for the first time), 8 to warm up, 80 that count.
COUNTED_REQUESTS = 80
ROTATING_REQUESTS = 2 * ROTATING_PREFIXES + COUNTED_REQUESTS

ALTERNATING_TOKENS = (350, 1000, 2000, 3500)
# Two warm-up alternations (the first one primes), then the requests whose median counts.
COUNTED_ITERATIONS = 8
ALTERNATING_REQUESTS = 2 * 2 + COUNTED_ITERATIONS
# Longer than computing and writing 3,500 tokens through takes on either machine.
INTERVAL_MS = 2000


def requests(tokens: int, prefixes: int, count: int, interval_ms: int) -> str:
    """`count` prompts of `tokens` tokens, one every `interval_ms`, going round `prefixes`."""
    blocks = tokens // BLOCK_TOKENS
    assert blocks * BLOCK_TOKENS == tokens
    lines: list[str] = []
    for number in range(count):
        first = number % prefixes * blocks
        row = {
            "timestamp": number * interval_ms,
            "input_length": tokens,
            "output_length": OUTPUT_TOKENS,
            "hash_ids": list(range(first, first + blocks)),
        }
        lines.append(json.dumps(row) + "\n")
    return "".join(lines)


def traces() -> dict[str, str]:
    """File name and text of every trace."""
    texts = {
        f"rotating-{ROTATING_TOKENS}.jsonl": requests(
            ROTATING_TOKENS, ROTATING_PREFIXES, ROTATING_REQUESTS, 0
        )
    }
    for tokens in ALTERNATING_TOKENS:
        text = requests(tokens, 2, ALTERNATING_REQUESTS, INTERVAL_MS)
        texts[f"alternating-{tokens}.jsonl"] = text
    return texts


def main(folder: Path) -> None:
    """Write every trace to `folder`, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in traces().items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
