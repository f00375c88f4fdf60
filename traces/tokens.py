"""Pages of prompts given as token ids: a tree of pages, exact to the token.

    prompt 1   t0 t1 t2 t3 | t4 t5 t6 t7 | t8 t9 ..     edge  (first key 0, pages 0-2)
    prompt 2   t0 t1 t2 t3 | u4 u5 u6 u7 | ..           edges (0, page 0), (1, pages 1-2), (3, ..)

An edge is a stretch of pages without a fork and holds their tokens; its keys are consecutive. So a
prompt is matched by comparing bytes, costs time by its tokens (little) and its forks, and memory
holds each distinct token behind its prefix once. A page that has been held was held to its end, and
with everything before it, so that what is in the tree is what is known.
"""

from __future__ import annotations

from array import array

from traces.cut import Cut, Cutter, Pages, Runs, add_run, split_runs
from traces.rows import Row

ROOT = 0


class TokenCutter(Cutter):
    """Cuts rows whose ids are token ids. A block, in its counts, is a page."""

    def __init__(self, page_size_tokens: int, pages: Pages) -> None:
        super().__init__(page_size_tokens, pages)
        self._next_key = 0
        # Bytes of a token: 4, and 8 from the first id on that needs them.
        self._code = "I"
        self._page_bytes = page_size_tokens * array("I").itemsize
        # For each edge: its first key, its tokens, and the edges behind it by their first page.
        self._first: list[int] = [0]
        self._tokens: list[bytes] = [b""]
        self._behind: list[dict[bytes, int]] = [{}]
        # Partly filled page by the key of the page before (-1: none) and its tokens.
        self._tail_at: dict[tuple[int, tuple[int, ...]], int] = {}

    @property
    def unique_blocks(self) -> int:
        """Distinct pages so far."""
        return self._next_key

    def cut_row(self, row: Row) -> Cut:
        """Take the next row; see `Cutter`."""
        tokens, page, ids = row.input_length, self._page, row.hash_ids
        covered_tokens = min(tokens, len(ids))
        num_pages = covered_tokens // page
        names_answer = row.output_ids is not None and covered_tokens == tokens and not self._partial
        if covered_tokens < tokens:
            self.rows_without_tail += 1
        context, held = ids, num_pages
        if names_answer and row.output_ids:
            context = ids[:tokens] + row.output_ids[: max(row.output_length, 1) - 1]
            held = len(context) // page
        runs, ideal = self._hold(context[: held * page])
        self.blocks += num_pages
        if names_answer:
            prompt_runs, output_runs = split_runs(runs, num_pages)
            self.ideal_blocks += min(ideal, num_pages)
            return prompt_runs, num_pages, min(ideal, num_pages), output_runs
        if self._partial and tokens % page and covered_tokens == tokens:
            self.blocks += 1
            tail = sum(runs[-1]) - 1 if runs else -1, tuple(ids[num_pages * page : tokens])
            key = self._tail_at.get(tail)
            if key is None:
                key = self._tail_at[tail] = self._next_key
                self._next_key += 1
            elif ideal == num_pages:
                ideal += 1
            add_run(runs, key, 1)
            num_pages += 1
        self.ideal_blocks += ideal
        return tuple(runs), num_pages, ideal, None

    def _hold(self, context: list[int]) -> tuple[Runs, int]:
        """Put whole pages of tokens into the tree. Return their runs, and how many were there."""
        text = self._packed(context)
        first_of, tokens_of, behind_of = self._first, self._tokens, self._behind
        page_bytes = self._page_bytes
        runs: Runs = []
        known = at = 0
        edge = ROOT
        while at < len(text):
            next_edge = behind_of[edge].get(text[at : at + page_bytes])
            if next_edge is None:
                first = self._next_key
                num_new = (len(text) - at) // page_bytes
                behind_of[edge][text[at : at + page_bytes]] = len(first_of)
                self._add_edge(first, text[at:], {})
                self._next_key += num_new
                add_run(runs, first, num_new)
                break
            edge = next_edge
            same = self._same_pages(tokens_of[edge], text, at)
            add_run(runs, first_of[edge], same)
            known += same
            at += same * page_bytes
            if same * page_bytes < len(tokens_of[edge]) and at < len(text):
                self._split(edge, same)
        return runs, known

    def _add_edge(self, first: int, tokens: bytes, behind: dict[bytes, int]) -> None:
        self._first.append(first)
        self._tokens.append(tokens)
        self._behind.append(behind)

    def _same_pages(self, tokens: bytes, text: bytes, at: int) -> int:
        """Leading pages of an edge that `text` has from `at` on."""
        page_bytes = self._page_bytes
        same, unsure = 0, min(len(tokens), len(text) - at) // page_bytes
        if tokens[: unsure * page_bytes] == text[at : at + unsure * page_bytes]:
            return unsure
        # The first `same` pages are equal, the first `unsure` are not.
        while unsure - same > 1:
            middle = (same + unsure) // 2
            start, end = same * page_bytes, middle * page_bytes
            if tokens[start:end] == text[at + start : at + end]:
                same = middle
            else:
                unsure = middle
        return same

    def _split(self, edge: int, num_pages: int) -> None:
        """Cut an edge behind its first `num_pages` pages; it keeps those."""
        cut = num_pages * self._page_bytes
        tokens = self._tokens[edge]
        lower = len(self._first)
        self._add_edge(self._first[edge] + num_pages, tokens[cut:], self._behind[edge])
        self._tokens[edge] = tokens[:cut]
        self._behind[edge] = {tokens[cut : cut + self._page_bytes]: lower}

    def _packed(self, ids: list[int]) -> bytes:
        try:
            return array(self._code, ids).tobytes()
        except OverflowError:
            self._widen()
            return array(self._code, ids).tobytes()

    def _widen(self) -> None:
        """Give every token 8 bytes."""

        def wide(tokens: bytes) -> bytes:
            return array("Q", array("I", tokens)).tobytes()

        assert self._code == "I", "ids have at most 64 bits"
        self._code = "Q"
        self._page_bytes = self._page * array("Q").itemsize
        self._tokens = [wide(tokens) for tokens in self._tokens]
        self._behind = [
            {wide(page): edge for page, edge in behind.items()} for behind in self._behind
        ]
