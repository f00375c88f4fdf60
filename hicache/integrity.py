"""Every invariant of the tree and its tiers, written out as assertions over the whole state.

Counters that the tree keeps incrementally are counted again from nothing, so that a forgotten
decrement, a page published early, freed twice or handed out while it arrives cannot hide.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hicache.allocator import PageAllocator
from hicache.arrival import Arrival
from hicache.duplicates import is_double
from hicache.node import DEVICE, HOST, TIER_NAMES, TIERS, Node
from hicache.operations import PageRuns
from hicache.tier import Tier
from hicache.tree import HiRadixTree


def check_integrity(tree: HiRadixTree, lent_pages: int = 0, lent: Sequence[PageRuns] = ()) -> None:
    """Assert the tree's invariants; AssertionError names the node and what does not add up.

    `lent_pages` of L2 are known not to be the tree's, because they are being read into; `lent` says
    which.
    """
    resident = [0, 0, 0]
    evictable = [0, 0, 0]
    arriving = [0, 0, 0]
    named: list[list[PageRuns]] = [[], [], []]
    arrivals: dict[int, Arrival] = {}
    nodes = 0
    todo: list[Node] = [tree.root]
    while todo:
        node = todo.pop()
        if node.parent is not None:
            nodes += 1
            _check_place(tree, node)
        for tier in TIERS:
            _check_copy(tree, node, tier)
            held = node.resident[tier]
            resident[tier] += held
            evictable[tier] += 0 if node.pins[tier] else held
            arrival = node.arrival[tier]
            if arrival is not None:
                arriving[tier] += node.length - held
                arrivals[id(arrival)] = arrival
            if tree.named:
                named[tier].append(node.pages[tier])
        todo.extend(node.children.values())
    assert nodes == tree.nodes, f"{nodes} nodes, but {tree.nodes} counted"
    for arrival in arrivals.values():
        if tree.named:
            named[arrival.target].append(arrival.pages)
    arriving[HOST] += lent_pages
    named[HOST] += lent
    arriving[DEVICE] += sum(victim.count for victim in tree.leaving)
    named[DEVICE] += [victim.pages for victim in tree.leaving]
    for tier in TIERS:
        _check_tier(tree, tier, resident[tier], evictable[tier], arriving[tier], named[tier])


def _check_place(tree: HiRadixTree, node: Node) -> None:
    parent = node.parent
    assert parent is not None
    assert parent.children.get(node.start) is node, f"{node} is not its parent's child"
    assert node.length > 0, f"{node} is empty"
    assert node.depth == parent.depth + parent.length, f"{node} does not follow its parent"
    if node.joined:
        assert tree.joins, f"{node} is joined to its parent, and inserts are not one"
        assert parent.parent is not None, f"{node} is joined to the root"
        assert len(parent.children) == 1, f"{node} is joined to its parent, which has more children"
    if not tree.step:  # walked: a parent is always slightly older
        assert parent.last_access >= node.last_access or parent.parent is None, (
            f"{node} is newer than its parent"
        )
    kept = any(node.resident) or any(node.pins) or node.children
    assert kept, f"{node} holds nothing and is still in the tree"


def _check_copy(tree: HiRadixTree, node: Node, tier: int) -> None:
    held, name = node.resident[tier], TIER_NAMES[tier]
    assert 0 <= held <= node.length, f"{node}: {held} pages resident in {name}"
    below = [child for child in node.children.values() if child.resident[tier]]
    assert node.kids[tier] == len(below), f"{node}: {node.kids[tier]} children counted in {name}"
    if node.parent is not None:
        assert not below or held == node.length, f"{node}: a hole in {name} above {below[0]}"
        pinned_below = sum(child.pins[tier] for child in node.children.values())
        assert node.pins[tier] >= pinned_below, f"{node}: fewer pins than its children in {name}"
    _check_notes(tree.tiers[tier], node)
    arrival = node.arrival[tier]
    if arrival is not None:
        assert arrival.published is None, f"{node}: an arrival in {name} that is over"
        assert held < node.length, f"{node}: arriving in {name}, but all of it is there"
        assert node.pins[tier] > 0, f"{node}: arriving in {name} without a pin"
        assert arrival.first <= node.depth + held or node.depth >= arrival.first
    if tree.named:
        count = sum(length for _, length in node.pages[tier])
        assert count == held, f"{node}: {count} page numbers for {held} pages in {name}"


def _check_notes(owner: Tier, node: Node) -> None:
    """What the strategies remember of a node is what the tier holds of it."""
    held, name = node.resident[owner.index], TIER_NAMES[owner.index]
    if owner.adaptive is not None:
        known = owner.adaptive.pages_of(node)
        assert known == held, f"{node}: {known} of {held} pages remembered in {name}"
    if owner.duplicates is not None:
        assert owner.duplicates.holds(node) == is_double(node), f"{node}: a duplicate or not?"


def _check_tier(
    tree: HiRadixTree,
    tier: int,
    resident: int,
    evictable: int,
    arriving: int,
    named: list[PageRuns],
) -> None:
    owner, name = tree.tiers[tier], TIER_NAMES[tier]
    assert owner.resident == resident, (
        f"{name}: {resident} pages resident, {owner.resident} counted"
    )
    assert owner.evictable == evictable, f"{name}: {evictable} evictable, {owner.evictable} counted"
    if owner.adaptive is not None:
        known = sum(owner.adaptive.segment_pages)
        assert known == resident, f"{name}: {known} of {resident} pages remembered"
    free = owner.allocator.free
    private = owner.capacity - free - resident - arriving
    assert private >= 0, f"{name}: {-private} pages too many"
    if tier != DEVICE:
        assert private == 0, f"{name}: {private} pages belong to nobody"
    if isinstance(owner.allocator, PageAllocator):
        runs = sorted([run for pages in named for run in pages] + owner.allocator.free_runs())
        for (first, length), (following, _) in pairwise(runs):
            assert first + length <= following, f"{name}: page {following} has two owners"
        counted = sum(length for _, length in owner.allocator.free_runs())
        assert counted == free, f"{name}: {counted} pages free, {free} counted"
