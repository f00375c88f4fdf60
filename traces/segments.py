"""Pages of prompts made of pieces of any length: a tree whose nodes stand for prefixes of pieces.

    pieces          a, 7 tokens   | b, 6 tokens    | c, 2 tokens
    pages of 4      0       1         2      3
    owned by        a       b         b      (none: c ends before the page does)

A piece owns the pages that end inside it: everything up to there is told by the pieces so far. Its
pages get keys when the piece first appears behind its prefix, so a prompt costs time by its pieces,
not by its pages. An id that comes with another length is another content.

Most pieces are followed by one other at most, the next turn of a conversation. That one is found
by its number, in an array; only what comes as a second one behind the same piece is in a
dictionary. So a piece takes 40 bytes, where an entry for each would take 300.
"""

from __future__ import annotations

from array import array

from traces.cut import Cut, Cutter, Pages, Runs, add_run, split_runs
from traces.rows import Row

# What prompts begin behind; and, since it is behind no piece, the word for "no such node".
ROOT = 0


class SegmentCutter(Cutter):
    """Cuts rows whose `lengths` say how many tokens each id stands for."""

    def __init__(self, page_size_tokens: int, pages: Pages) -> None:
        super().__init__(page_size_tokens, pages)
        self._next_key = 0
        # Of each node, the root included: id and tokens of its piece, and the first node behind it.
        self._id_of = array("q", [0])
        self._length_of = array("q", [0])
        self._next_of = array("q", [ROOT])
        # Every other node by (node before it, id, tokens).
        self._other_at: dict[tuple[int, int, int], int] = {}
        # Of each node its first page's key, and how many of its pages were ever held: all of
        # them, unless a prompt or an answer ended inside the piece.
        self._first_of = array("q", [0])
        self._held_of = array("q", [0])
        # Partly filled page by the prompt's last node and its tokens.
        self._tail_at: dict[tuple[int, int], int] = {}

    @property
    def unique_blocks(self) -> int:
        """Distinct pieces so far; the same id behind another prefix is another one."""
        return len(self._first_of) - 1

    def cut_row(self, row: Row) -> Cut:
        """Take the next row; see `Cutter`."""
        ids, lengths = row.hash_ids, row.lengths or []
        assert len(ids) == len(lengths), "a layout without a block size has rows with lengths"
        tokens, page, num_pieces = row.input_length, self._page, len(ids)
        covered_tokens = sum(lengths)
        self.blocks += num_pieces
        held_tokens = min(tokens, covered_tokens)
        if covered_tokens < tokens:
            self.rows_without_tail += 1
        # Behind tokens that no id stands for, the answer's place among the pages is unknown.
        names_answer = row.output_ids is not None and covered_tokens == tokens and not self._partial
        if names_answer and row.output_ids:
            assert row.output_lengths is not None, (
                "an answer's ids have lengths where a prompt's do"
            )
            ids, lengths = ids + row.output_ids, lengths + row.output_lengths
            held_tokens = min(tokens + max(row.output_length, 1) - 1, sum(lengths))
        runs, ideal, known, node = self._walk(ids, lengths, held_tokens // page)
        self.ideal_blocks += min(known, num_pieces)
        num_pages = min(tokens, covered_tokens) // page
        if names_answer:
            prompt_runs, output_runs = split_runs(runs, num_pages)
            return prompt_runs, num_pages, min(ideal, num_pages), output_runs
        if self._partial and tokens % page and covered_tokens >= tokens:
            key = self._tail_at.get((node, tokens))
            if key is None:
                key = self._tail_at[node, tokens] = self._next_key
                self._next_key += 1
            elif ideal == num_pages:
                ideal += 1
            add_run(runs, key, 1)
            num_pages += 1
        return tuple(runs), num_pages, ideal, None

    def _walk(
        self, ids: list[int], lengths: list[int], num_pages: int
    ) -> tuple[Runs, int, int, int]:
        """Hold the first `num_pages` pages of these pieces.

        Return their runs, how many leading ones were held before, how many leading pieces were
        known, and the node of the last piece.
        """
        id_of, length_of, next_of, other_at = (
            self._id_of, self._length_of, self._next_of, self._other_at,
        )  # fmt: skip
        held_of, page = self._held_of, self._page
        runs: Runs = []
        node = ROOT
        end = start_page = ideal = 0
        known = -1
        for index, (id_, length) in enumerate(zip(ids, lengths, strict=True)):
            end += length
            end_page = end // page
            owned = end_page - start_page
            before, node = node, next_of[node]
            if node == ROOT or id_of[node] != id_ or length_of[node] != length:
                node = other_at.get((before, id_, length), ROOT)
            if node == ROOT:
                if known < 0:
                    known = index
                node = self._new_node(before, id_, length, owned)
            here = owned if end_page <= num_pages else num_pages - start_page
            if here > 0:
                held = held_of[node]
                # Nothing behind a piece is held before all of the piece is.
                ideal += min(held, here)
                if held < here:
                    held_of[node] = here
                add_run(runs, self._first_of[node], here)
            start_page = end_page
        return runs, ideal, len(ids) if known < 0 else known, node

    def _new_node(self, before: int, id_: int, length: int, pages: int) -> int:
        node = len(self._id_of)
        if self._next_of[before] == ROOT:
            self._next_of[before] = node
        else:
            self._other_at[before, id_, length] = node
        self._id_of.append(id_)
        self._length_of.append(length)
        self._next_of.append(ROOT)
        self._first_of.append(self._next_key)
        self._held_of.append(0)
        self._next_key += pages
        return node
