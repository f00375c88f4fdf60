"""Using a tree the way the engine does, one whole action at a time."""

from __future__ import annotations

from small_workloads import Keys

from hicache.arrival import Arrival
from hicache.errors import TransferError
from hicache.node import DEVICE, Node
from hicache.options import CacheOptions, EngineOptions
from hicache.tree import HiRadixTree, Match

Contents = tuple[int, ...]


def small_tree(*capacities: int, page_ids: str = "named", **cache: object) -> HiRadixTree:
    """A tree over tiers of these capacities, in pages of one token."""
    return HiRadixTree(
        EngineOptions(1, 1, *capacities, page_ids=page_ids, cache=CacheOptions(**cache))  # type: ignore[arg-type]
    )


class TreeUser:
    """Serves prompts, given as page contents, from a tree."""

    def __init__(self, tree: HiRadixTree) -> None:
        self.tree = tree
        self.keys = Keys()

    def match(self, contents: Contents) -> Match:
        """Look `contents` up."""
        return self.tree.match(self.keys.runs(contents))

    def compute(self, contents: Contents, priority: int = 0) -> int | None:
        """Serve a prompt: what L1 lacks is computed into private pages, and left to the tree.

        Returns how many pages the tree did not take because others are bringing them (they are free
        again); None where L1 has no room.
        """
        tree = self.tree
        match = self.match(contents)
        held = match.device
        node = tree.holder(match.node, held)
        tree.pin(node, DEVICE)
        private = len(contents) - held
        pages = tree.take(DEVICE, private)
        if pages is None or not private:
            tree.unpin(node, DEVICE)
            return None if pages is None else 0
        end = tree.extend(node, self.keys.runs(contents), priority)
        node, duplicates, pages, adopted = tree.adopt(node, end, held, pages)  # the pin moves down
        private -= duplicates + adopted
        tree.give(DEVICE, pages, private)
        tree.unpin(node, DEVICE)
        return private

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
