"""What a running request holds of L1: a pinned part that is the tree's, and private pages behind
it.

    |------ held: the tree's, pinned ------|---- private ----|      pages of one request
                                     node ^

Pages change hands in one direction: when the prompt is computed, and again when the request is
done, private pages become the tree's; in the end the pin goes and what is still private is free.
"""

from __future__ import annotations

from hicache.allocator import cut
from hicache.metrics import Metrics
from hicache.node import DEVICE, Node
from hicache.options import EngineOptions
from hicache.requests import answer_runs
from hicache.running import Running
from hicache.transfers import Transfers
from hicache.tree import HiRadixTree

# Keys of pages that no prompt names (outputs): far below all others, never used twice.
FIRST_PRIVATE_KEY = -(1 << 62)


def first_private_key(options: EngineOptions) -> int:
    """Where the keys of pages that no prompt names begin: room for 2^44 of them in each engine."""
    return FIRST_PRIVATE_KEY + (options.instance << 44)


class Holdings:
    """Gives pages of requests to the tree, and the rest back."""

    def __init__(
        self, tree: HiRadixTree, transfers: Transfers, options: EngineOptions, metrics: Metrics
    ) -> None:
        self._tree = tree
        self._transfers = transfers
        self._metrics = metrics
        self._page = options.page_size_tokens
        self._caches_outputs = options.cache.outputs == "cached"
        self._writes_at_prefill = options.cache.write_at == "prefill"
        self._private_key = first_private_key(options)

    def leave_prompt(self, run: Running) -> None:
        """The prompt is computed: its pages become the tree's, as far as no arrival is in the
        way.
        """
        request = run.request
        if run.held < request.prompt_pages:
            assert run.node is not None
            end = self._tree.extend(run.node, request.prompt_runs, request.priority)
            self._adopt(run, end)
            if self._writes_at_prefill:
                self._transfers.write_through(run.node)
        elif self._tree.counts_full_hits and run.node is not None:
            self._tree.extend(run.node, request.prompt_runs, request.priority)

    def leave_all(self, run: Running, kv_tokens: int) -> None:
        """The request is done with `kv_tokens` tokens in L1: cache its output (all but its last
        token) behind the prompt, write through what lower tiers lack, and let go.
        """
        if self._caches_outputs:
            self._leave_output(run, kv_tokens // self._page)
        if run.held:
            assert run.node is not None
            if self._transfers.reuse is not None:
                self._transfers.count_use(run.node)
            self._transfers.write_through(run.node)
        self.release(run)

    def leave_part(self, run: Running, full_pages: int) -> None:
        """The answer goes on, and its first `full_pages` pages, those of the prompt among them,
        become the tree's now, as far as no arrival is in the way.
        """
        request = run.request
        if run.held < request.prompt_pages:
            self.leave_prompt(run)
        if request.prompt_pages <= run.held < full_pages:
            self._add_answer(run, full_pages, self._tree.counts_inserts)

    def release(self, run: Running) -> None:
        """Undo the pin and free what is private."""
        assert run.private >= 0, run.private
        if run.private:
            self._tree.give(DEVICE, run.private_pages, run.private)
            run.private, run.private_pages = 0, ()
        assert run.node is not None
        self._tree.unpin(run.node, DEVICE)
        run.node, run.held = None, 0

    def _leave_output(self, run: Running, full_pages: int) -> None:
        request = run.request
        prompt_pages = request.prompt_pages
        if run.held < prompt_pages:
            self.leave_prompt(run)  # an arrival stood in the way when the prompt was computed
        more = full_pages - run.held
        assert run.node is not None
        if self._tree.prompt_step and full_pages > prompt_pages <= run.held:
            self._tree.raise_prompt(self._tree.holder(run.node, prompt_pages), request.priority)
        if run.answer_key and run.held >= prompt_pages:
            if more > 0 or self._tree.counts_inserts:
                self._add_answer(run, max(full_pages, run.held), False)
            return
        if run.held != prompt_pages or more <= 0:
            if self._tree.counts_inserts and run.generated > 1:
                self._tree.append(run.node, ())
            return
        answer = answer_runs(request, more, self._private_key)
        end = self._tree.append(run.node, answer, request.priority)
        self._private_key += more + 1
        self._adopt(run, end)

    def _add_answer(self, run: Running, full_pages: int, uncounted: bool) -> None:
        """Pages of an answer that comes in parts, up to page `full_pages`, become the tree's.

        `uncounted`: where an insert counts as a hit, the answer as a whole is one, at its end.
        """
        tree, prompt_pages = self._tree, run.request.prompt_pages
        if not run.answer_key:
            run.answer_key = self._private_key
            tokens = run.request.prompt_tokens + run.request.output_tokens
            self._private_key += tokens // self._page - prompt_pages + 2
        assert run.node is not None
        priority = run.request.priority
        runs = answer_runs(run.request, full_pages - prompt_pages, run.answer_key)
        if not tree.counts_inserts:
            runs = cut(tuple(runs), run.held - prompt_pages)[1]
            end = tree.append(run.node, runs, priority)
        else:
            node = tree.cut_at(run.node, prompt_pages)
            end = tree.grow(node, runs) if uncounted else tree.append(node, runs, priority)
        self._adopt(run, end)

    def _adopt(self, run: Running, end: Node) -> None:
        assert run.node is not None
        run.node, duplicates, run.private_pages, adopted = self._tree.adopt(
            run.node, end, run.held, run.private_pages
        )
        run.private -= duplicates + adopted
        run.held += duplicates + adopted
        self._metrics.duplicate_pages += duplicates
