"""Texts become token ids, piece by piece, so that a longer text's ids start with a shorter one's.

Tokenizing a whole prompt can merge its end with what follows, and then the next turn's prompt does
not start with this one's ids. So each piece is tokenized for itself, and prompts are pieces put one
after the other:

    messages   "<|user|>\\n" + text + "\\n"   "<|assistant|>\\n" + text + "\\n"   ...
    prompt     all messages so far, then "<|assistant|>\\n"
    answer     its text

This is no model's own chat template: lengths differ from the server's by some tokens a message. But
the prompt of a turn starts with the prompt and the answer of the turn before, token for token, as
it does in the server. No special tokens are added. Texts must have no lone surrogates (JSON that
decodes has none). The tokenizer is a Hugging Face tokenizer.json,
read by the `tokenizers` package; its truncation and padding are off.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from hicache.errors import InputError
from traces.rows import ReadOptions

# Ids of texts that came before are kept, up to this many in all (about 70 MB).
KNOWN_IDS = 1 << 21

NO_TOKENS = "the prompt has no tokens under this tokenizer"

# What data sets call the two sides.
ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant"}


class Tokenizer:
    """One tokenizer file. `ids` is what it is for."""

    def __init__(self, path: str) -> None:
        try:
            import tokenizers
        except ImportError:
            raise InputError(
                "texts need the package tokenizers: pip install 'hicache-lab[text]'"
            ) from None
        if os.path.isdir(path):
            path = os.path.join(path, "tokenizer.json")
        try:
            self._tokenizer: Any = tokenizers.Tokenizer.from_file(path)
        # The package raises bare exceptions.
        except Exception as error:
            reason = " ".join(str(error).split()).partition(" (os error")[0]
            raise InputError(
                f"{path}: cannot be read as a Hugging Face tokenizer.json: {reason}"
            ) from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._known: dict[str, list[int]] = {}
        self._known_ids = 0

    def ids(self, text: str) -> Sequence[int]:
        """The token ids of `text` alone."""
        found = self._known.get(text)
        if found is None:
            found = self._tokenizer.encode(text, add_special_tokens=False).ids
            if self._known_ids > KNOWN_IDS:
                self._known, self._known_ids = {}, 0
            self._known[text] = found
            self._known_ids += len(found)
        return found

    def prompt_ids(self, text: str) -> list[int]:
        """The ids of a whole prompt, with the special tokens that the tokenizer puts around it."""
        return self._tokenizer.encode(text).ids

    def message_ids(self, role: str, text: str) -> list[int]:
        """One message of a conversation, from its header to its end."""
        return [*self.header_ids(role), *self.ids(text), *self.ids("\n")]

    def header_ids(self, role: str) -> Sequence[int]:
        """What stands before a message's text."""
        return self.ids(f"<|{ROLES.get(role, role)}|>\n")


def open_tokenizer(options: ReadOptions, name: str) -> Tokenizer:
    """The tokenizer that `options` name. `InputError` if there is none; `name` is the file's."""
    if not options.tokenizer:
        raise InputError(
            f"{name}: holds texts, not tokens: give the model's tokenizer file "
            "(--tokenizer FILE, a Hugging Face tokenizer.json)"
        )
    return Tokenizer(options.tokenizer)
