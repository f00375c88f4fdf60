"""Conversations as rows: every question and answer is a piece with an id of its own.

Row k asks piece 2k and is answered with piece 2k + 1, behind all that its conversation said before.
So prompts are exact at every page size, and whoever replays the rows by `after` closes the loop.
"""

from __future__ import annotations

from traces.rows import Layout, Row

# Pieces of any length.
PIECES = Layout(0)


class Turns:
    """Makes the rows of many conversations, in the order in which they are asked."""

    def __init__(self) -> None:
        self._rows = 0
        # Number of the latest row, and ids and tokens of all that was said, by conversation.
        self._said: dict[int, tuple[int, list[int], list[int]]] = {}

    def ask(
        self,
        conversation: int,
        question_tokens: int,
        output_tokens: int,
        timestamp_ms: int,
        *,
        delay_ms: int = 0,
    ) -> Row:
        """The next turn of a conversation, which comes `delay_ms` after the last answer."""
        number = self._rows
        self._rows += 1
        after, ids, lengths = self._said.get(conversation, (-1, [], []))
        ids = [*ids, 2 * number]
        lengths = [*lengths, question_tokens]
        answer = 2 * number + 1
        self._said[conversation] = (number, [*ids, answer], [*lengths, output_tokens])
        return Row(
            sum(lengths),
            output_tokens,
            timestamp_ms,
            ids,
            lengths,
            [answer],
            [output_tokens],
            session=str(conversation),
            after=after,
            delay=delay_ms if after >= 0 else 0,
        )

    def forget(self, conversation: int) -> None:
        """That conversation is over."""
        del self._said[conversation]
