"""What the tests of `traces` share: where real traces lie, small ones, a naive ceiling."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
CONVERSATION = REPOSITORY.parent / "shared" / "traces" / "mooncake_conversation.jsonl"

needs_conversation = pytest.mark.skipif(
    not CONVERSATION.exists(), reason="the real traces are not beside this checkout"
)


def line(ids: Sequence[int], tokens: int, timestamp: float = 0, output: int = 1) -> str:
    """One line of Mooncake's format."""
    return json.dumps(
        {
            "timestamp": timestamp,
            "input_length": tokens,
            "output_length": output,
            "hash_ids": list(ids),
        }
    )


def write_lines(path: Path, lines: Iterable[str]) -> Path:
    path.write_text("".join(f"{each}\n" for each in lines))
    return path


def keys_of(runs: Iterable[tuple[int, int]]) -> list[int]:
    """Every page key of a prompt."""
    return [key for first, count in runs for key in range(first, first + count)]


class NaiveCeiling:
    """An infinite cache of pages, each known by all ids up to its block and its place in it."""

    def __init__(self, block_tokens: int, page_size_tokens: int, pages: str) -> None:
        self.block_tokens = block_tokens
        self.page_size_tokens = page_size_tokens
        self.pages = pages
        self.cached: set[tuple[tuple[int, ...], int]] = set()

    def pages_of(self, ids: Sequence[int], tokens: int) -> list[tuple[tuple[int, ...], int]]:
        per_block = self.block_tokens // self.page_size_tokens
        found = []
        for index in range(len(ids) * per_block):
            start = index * self.page_size_tokens
            end = start + self.page_size_tokens
            if end <= tokens or (self.pages == "partial" and start < tokens):
                found.append((tuple(ids[: index // per_block + 1]), index % per_block))
        return found

    def ideal_pages(self, ids: Sequence[int], tokens: int) -> int:
        """The leading pages that are cached; afterwards all of the prompt's are."""
        pages = self.pages_of(ids, tokens)
        hit = 0
        while hit < len(pages) and pages[hit] in self.cached:
            hit += 1
        self.cached.update(pages)
        return hit
