"""What the tests of readers of texts share: a small tokenizer, made on the spot."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from recorded_helpers import rows_of

from traces.rows import BadRows, ReadOptions, Row
from traces.source import Source

SENTENCES = [
    "the cache keeps what the server has seen",
    "the cache of a page is the page before and the page after",
    "how long is the answer of the server?\n<|user|>\n<|assistant|>\n",
]


@cache
def tokenizer_json() -> str:
    """A byte-level BPE tokenizer that merges across words' ends, with truncation on."""
    tokenizers = pytest.importorskip("tokenizers", reason="the extra `text` is not installed")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    made.train_from_iterator(SENTENCES * 20, trainer)
    made.enable_truncation(4)
    made.enable_padding(length=8)
    return made.to_str()


def tokenizer_options(folder: Path) -> ReadOptions:
    path = folder / "tokenizer.json"
    path.write_text(tokenizer_json())
    return ReadOptions(tokenizer=str(path))


def text_of(folder: Path, ids: list[int]) -> str:
    import tokenizers

    made: Any = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    return made.decode(ids)


def read_leaving_out(reader: Any, path: Path, options: ReadOptions) -> tuple[list[Row], BadRows]:
    source = Source(path)
    bad = BadRows(source.name, skip=True)
    return rows_of(reader.open(source, options, bad)), bad
