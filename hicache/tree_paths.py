"""What holds at every moment of the tree: its nodes, the pins on them, what a path says of a tier.

The lowest of the tree's three layers:

    hicache.tree         walks: looks prompts up, adds what is missing, touches and counts
    hicache.tree_pages   takes and gives pages of the tiers, and publishes them on nodes
    hicache.tree_paths   here

A pin on a node holds for its whole path: `pins[t]` counts the users of a node *or of one below it*.
A node that is cut stays the lower half, so that whatever holds on to it (pins, children, transfers)
stays valid; one that holds nothing, is not pinned and has no children leaves. Refuses to evict, to
publish, and to know when something was used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hicache.allocator import cut, join_all
from hicache.node import DEVICE, HOST, STORAGE, TIERS, Node
from hicache.operations import PageRuns
from hicache.options import EngineOptions
from hicache.tier import Tier

if TYPE_CHECKING:
    from hicache.arrival import Arrival


class TreePaths:
    """Nodes and tiers of one tree."""

    def __init__(self, options: EngineOptions) -> None:
        self.root = Node(-1, 0, None, 0, 0)
        host = Tier(HOST, options)
        self.tiers = (Tier(DEVICE, options, host), host, Tier(STORAGE, options))
        self.named = options.page_ids == "named"
        self.nodes: int = 0
        self.splits = 0
        # Whether what one insert adds is one (`Node.joined`).
        self.joins = options.cache.node_boundaries == "insert"

    # ------------------------------------------------------------------ what a path says

    def holder(self, node: Node, depth: int) -> Node:
        """The node on the path ending at `node` that holds page `depth - 1` (the root for `depth`
        0).
        """
        while node.depth >= depth and node.parent is not None:
            node = node.parent
        return node

    def cut_at(self, node: Node, depth: int) -> Node:
        """The node on the path ending at `node` that ends at page `depth`, split off if there is
        none yet.
        """
        holder = self.holder(node, depth)
        if holder.depth + holder.length > depth:
            return self._split(holder, depth - holder.depth)
        if self.joins:
            below = holder.joined_below()
            if below is not None:
                below.joined = False
        return holder

    def arriving_at(self, node: Node, tier: int, depth: int) -> Arrival | None:
        """The arrival that brings page `depth` of the path ending at `node` into `tier`, if one
        does.
        """
        holder = self.holder(node, depth + 1)
        arrival = holder.arrival[tier]
        if arrival is not None and holder.depth + holder.resident[tier] <= depth:
            return arrival
        return None

    def covered(self, node: Node, tier: int) -> tuple[int, Arrival | None]:
        """Up to where `tier` holds or is about to hold the path ending at `node`, and the arrival
        that says so.

        The first page that is neither PUBLISHED nor ARRIVING; the arrival is None if the page
        before it is published.
        """
        current = node
        while current.parent is not None:
            if current.arrival[tier] is not None:
                return current.end, current.arrival[tier]
            held = current.resident[tier]
            if held:
                return current.depth + held, None
            current = current.parent
        return 0, None

    def held(self, node: Node, tier: int) -> int:
        """How many leading pages of the path ending at `node` are published in `tier`."""
        current = node
        while current.parent is not None and not current.resident[tier]:
            current = current.parent
        return current.depth + current.resident[tier]

    def pages_from(self, node: Node, tier: int, first: int) -> PageRuns:
        """Physical pages of page `first` to the end of the path ending at `node`, all published in
        `tier`.
        """
        parts: list[PageRuns] = []
        current = node
        while current.parent is not None and current.end > first:
            assert current.resident[tier] == current.length, f"{current} is not all in tier {tier}"
            pages = current.pages[tier]
            parts.append(cut(pages, first - current.depth)[1] if first > current.depth else pages)
            current = current.parent
        parts.reverse()
        return join_all(parts)

    # ------------------------------------------------------------------ pins

    def pin(self, node: Node, tier: int) -> None:
        """Keep what `tier` holds of the path ending at `node` until `unpin`."""
        owner = self.tiers[tier]
        current: Node | None = node
        while current is not None:
            pins = current.pins
            users = pins[tier]
            if not users:
                owner.evictable -= current.resident[tier]
            pins[tier] = users + 1
            current = current.parent

    def unpin(self, node: Node, tier: int) -> None:
        """Undo one `pin` of the same node."""
        owner = self.tiers[tier]
        current: Node | None = node
        while current is not None:
            parent = current.parent
            pins = current.pins
            pins[tier] = users = pins[tier] - 1
            assert users >= 0, f"{current} unpinned more often than pinned"
            if not users:
                held = current.resident[tier]
                if held:
                    owner.evictable += held
                    if not current.kids[tier]:
                        owner.offer(current)
                elif not current.children:
                    self._prune(current)
            current = parent

    def repin(self, old: Node, new: Node, tier: int) -> None:
        """Move one pin from `old` down to `new`, a node below it (or itself): only what lies
        between changes.
        """
        owner = self.tiers[tier]
        current = new
        while current is not old:
            pins = current.pins
            users = pins[tier]
            if not users:
                owner.evictable -= current.resident[tier]
            pins[tier] = users + 1
            assert current.parent is not None, f"{new} is not below {old}"
            current = current.parent

    # ------------------------------------------------------------------ the shape of the tree

    def _prune(self, node: Node) -> None:
        """Take `node`, and ancestors that only it kept, out of the tree if nothing is left of
        them.
        """
        while not node.children:
            device, host, storage = node.resident
            if device or host or storage:
                return
            device, host, storage = node.pins
            parent = node.parent
            if device or host or storage or parent is None:
                return
            del parent.children[node.start]
            self.nodes -= 1
            node = parent

    def _split(self, lower: Node, count: int) -> Node:
        """Cut `lower` after `count` pages; returns the new upper half. Every tier is split, also
        under way.
        """
        parent = lower.parent
        assert parent is not None
        assert 0 < count < lower.length
        upper = Node(lower.start, count, parent, lower.depth, lower.last_access)
        upper.created = lower.created
        upper.hit_count = lower.hit_count
        upper.priority = lower.priority
        upper.joined = lower.joined
        lower.joined = False
        parent.children[upper.start] = upper
        lower.start += count
        lower.depth += count
        lower.length -= count
        lower.parent = upper
        upper.children[lower.start] = lower
        self.nodes += 1
        self.splits += 1
        for tier in TIERS:
            held = lower.resident[tier]
            above = min(held, count)
            upper.resident[tier] = above
            lower.resident[tier] = held - above
            upper.pins[tier] = lower.pins[tier]
            if held > above:
                upper.kids[tier] = 1
            if self.named:
                upper.pages[tier], lower.pages[tier] = cut(lower.pages[tier], above)
            if above < count:
                upper.arrival[tier] = lower.arrival[tier]
        for owner in self.tiers:
            if owner.notes:
                owner.split(upper, lower)
            tier = owner.index
            if upper.resident[tier] and not upper.kids[tier] and not upper.pins[tier]:
                owner.offer(upper)
        if not lower.children:
            self._prune(lower)  # its tail had been trimmed in every tier: nothing is left below
        return upper
