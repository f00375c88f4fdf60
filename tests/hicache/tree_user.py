"""Using a tree the way the engine does, one whole action at a time."""

from __future__ import annotations

from typing import NamedTuple

from small_workloads import Keys

from hicache.arrival import Arrival
from hicache.errors import TransferError
from hicache.node import DEVICE, Node
from hicache.operations import PageRuns
from hicache.options import CacheOptions, EngineOptions
from hicache.tree import HiRadixTree, Match

Contents = tuple[int, ...]


def small_tree(*capacities: int, page_ids: str = "named", **cache: object) -> HiRadixTree:
    """A tree over tiers of these capacities, in pages of one token."""
    return HiRadixTree(
        EngineOptions(1, 1, *capacities, page_ids=page_ids, cache=CacheOptions(**cache))  # type: ignore[arg-type]
    )


class Computing(NamedTuple):
    """A prompt whose first `held` pages are pinned at `node`, and private pages for the others."""

    contents: Contents
    node: Node
    held: int
    pages: PageRuns


class TreeUser:
    """Serves prompts, given as page contents, from a tree."""

    def __init__(self, tree: HiRadixTree) -> None:
        self.tree = tree
        self.keys = Keys()

    def match(self, contents: Contents) -> Match:
        """Look `contents` up."""
        return self.tree.match(self.keys.runs(contents))

    def start(self, contents: Contents) -> Computing | None:
        """Look a prompt up, pin what L1 has of it and take pages for the rest; None where L1 has no
        room.
        """
        tree = self.tree
        match = self.match(contents)
        held = match.device
        node = match.node if match.depth == held else tree.cut_at(match.node, held)
        tree.pin(node, DEVICE)
        pages = tree.take(DEVICE, len(contents) - held)
        if pages is None:
            tree.unpin(node, DEVICE)
            return None
        return Computing(contents, node, held, pages)

    def finish(self, computing: Computing, priority: int = 0) -> int:
        """Leave what was computed to the tree. Returns how many pages it did not take because
        others are bringing them; they are free again.
        """
        tree, (contents, node, held, pages) = self.tree, computing
        private = len(contents) - held
        if private:
            end = tree.extend(node, self.keys.runs(contents), priority)
            node, duplicates, pages, adopted = tree.adopt(node, end, held, pages)
            private -= duplicates + adopted  # the pin has moved down
            tree.give(DEVICE, pages, private)
        elif tree.counts_full_hits:
            tree.extend(node, self.keys.runs(contents), priority)
        tree.unpin(node, DEVICE)
        return private

    def compute(self, contents: Contents, priority: int = 0) -> int | None:
        """Both at once; None where L1 has no room."""
        computing = self.start(contents)
        return None if computing is None else self.finish(computing, priority)

    def arrive(self, node: Node, source: int, target: int) -> Arrival | None:
        """Begin to bring what `target` lacks of the path ending at `node`; None if nothing is
        missing, or there is no room.
        """
        first, before = self.tree.covered(node, target)
        if first >= node.end:
            return None
        arrival = Arrival(self.tree, node, source, target, first, before)
        arrival.__enter__()
        if not arrival.reserve():
            self.settle(arrival, TransferError("no room"))
            return None
        return arrival

    def settle(self, arrival: Arrival, error: BaseException | None = None) -> None:
        """Let an arrival end, well or with `error`."""
        arrival.__exit__(type(error) if error is not None else None, error, None)

    def copy(self, contents: Contents, target: int) -> bool:
        """Bring a known prompt into `target` at once; False where there was no room or nothing to
        do.
        """
        node = self.match(contents).node
        arrival = self.arrive(node, DEVICE, target)
        if arrival is None:
            return False
        self.settle(arrival)
        return True
