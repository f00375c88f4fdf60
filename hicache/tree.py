"""HiRadixTree: one path-compressed prefix tree over page keys, with three tiers of residency on its
nodes.

One walk gives the leading hit of each tier. A match that ends inside a node splits it; the old
object stays the lower half, so pins, children and transfers that hold on to it stay valid.
Residency is a leading run in each node (`hicache.node`) and closed under prefixes along each path:

    root --[0, 4)-- a --[4, 9)-- b --[9, 12)-- c
    device  1111         11111        110            leading hit 11: c's tail was trimmed
    host    1111         11000        000            leading hit 6

Rules:

* a pin on a node holds for its whole path: `pins[t]` counts the users of a node *or of one below
  it*;
* an arrival (pages under way into a tier) needs its path pinned in that tier, so that no ancestor
  leaves first;
* a node leaves the tree when no tier holds it, nobody pins it and it has no children.

A gap in the middle (a path that L1 holds, then L2 alone, then L1 again) cannot arise: leaves go
first, and nothing is published behind a hole. So the three leading hits say which tier is nearest
for each page, and one walk finds all that any tier holds of a prompt.

Here are the walks; pins and paths are in `hicache.tree_paths`, pages in `hicache.tree_pages`. The
tree never sees text, time or devices. Every method is atomic: nothing here can suspend.
"""

from __future__ import annotations

from typing import final

from hicache.node import DEVICE, HOST, STORAGE, Node
from hicache.options import EngineOptions
from hicache.requests import KeyRuns
from hicache.tree_pages import TreePages


@final
class Match:
    """Where a walk ended: `node` ends at page `depth`; each tier holds that many leading pages of
    the path.

    `tokens`: those that must stand in L1 before the request's next one can be made, where a restore
    policy is asked about it; else 0.
    """

    __slots__ = ("depth", "device", "host", "node", "storage", "tokens")

    def __init__(
        self, node: Node, depth: int, device: int, host: int, storage: int, tokens: int = 0
    ) -> None:
        self.node = node
        self.depth = depth
        self.device = device
        self.host = host
        self.storage = storage
        self.tokens = tokens


@final
class HiRadixTree(TreePages):
    """The tree and its three tiers."""

    def __init__(self, options: EngineOptions) -> None:
        super().__init__(options)
        cache = options.cache
        self.step = 1 if cache.touch == "walked" else 0  # between the access times on a path
        self.prompt_step = cache.prompt_priority_step
        # Whether an insert raises the priority of a node that it cuts as a whole: SGLang's tree
        # with an L2 does, the one without does not.
        self._raises_all = options.host_pages > 0
        # Strategies that remember count each request once, whatever the options say.
        remembers = self.tiers[DEVICE].adaptive is not None
        self._hit = 1 if remembers or cache.write_policy != "write_back" else 0
        # Whether a request is counted again when it has ended, and only on what L1 holds.
        self.counts_inserts = cache.hit_counting == "insert" and not remembers
        # Whether a prompt that is all there is to be inserted as well, for its hit to be counted.
        self.counts_full_hits = (
            remembers
            or self.counts_inserts
            or cache.least_write_hits > 1
            or (cache.touch == "walked" and cache.eviction in ("lfu", "slru", "priority"))
        )
        # Whether an access concerns the queues of candidates.
        self._falling = any(
            tier.offers_on_access or (tier.adaptive is not None and tier.adaptive.watches)
            for tier in self.tiers
        )

    def match(self, runs: KeyRuns) -> Match:
        """Walk down the longest path of nodes whose keys lead `runs`, and touch it.

        Splits the last node if it goes on after the match.
        """
        now, step = self.clock + 1, self.step
        node = self.root
        cut_off: Node | None = None
        depth = device = host = storage = 0
        on_device = on_host = on_storage = True
        for start, count in runs:
            while count:
                child = node.children.get(start)
                if child is None:
                    break
                length = child.length
                if length > count:
                    if step:
                        cut_off, now = child, now + step
                    child = self._split_walked(child, count, now)
                    length = count
                now += step
                child.last_access = now
                resident = child.resident
                if on_device:
                    held = resident[DEVICE]
                    device += held
                    on_device = held == length
                if on_host:
                    held = resident[HOST]
                    host += held
                    on_host = held == length
                if on_storage:
                    held = resident[STORAGE]
                    storage += held
                    on_storage = held == length
                node = child
                depth += length
                start += length
                count -= length
            if count:
                break
        if self.joins:
            cut_off, now = self._part(node, cut_off, now, 0)
        self.clock = now
        if self._falling:
            self._offer_accessed(node if cut_off is None else cut_off)
        return Match(node, depth, device, host, storage)

    def extend(self, node: Node, runs: KeyRuns, priority: int = 0) -> Node:
        """Walk on from `node`, which ends inside `runs`, and add what is missing; returns the
        path's end.

        Counts a hit on each node of the path, touches it, and creates at most one node for each
        run; they are joined where all of an insert is one.
        """
        self.clock = now = self.clock + 1
        hit = self._hit
        ancestor: Node | None = node
        while ancestor is not None:
            ancestor.last_access = now
            ancestor.hit_count += hit
            if priority > ancestor.priority:
                ancestor.priority = priority
            ancestor = ancestor.parent
        if self.step:
            self._touch_downwards(node)
        return self._descend(node, runs, node.depth + node.length, priority)

    def append(self, node: Node, runs: KeyRuns, priority: int = 0) -> Node:
        """Walk on from `node` along `runs`, whose keys begin behind it, and add what is missing;
        returns the end.

        Touches the path; counts a hit only on what lies below `node`, unless inserts are counted
        (`counts_inserts`), of which this is one of all that the request has.
        """
        return self._go_on(node, runs, priority, self._hit if self.counts_inserts else 0)

    def grow(self, node: Node, runs: KeyRuns) -> Node:
        """As `append`, of pages that nobody computed and nobody hit: no hit is counted."""
        hit, self._hit = self._hit, 0
        end = self._go_on(node, runs, node.priority, 0)
        self._hit = hit
        return end

    def raise_prompt(self, node: Node, priority: int) -> None:
        """A request of `priority` has an answer behind `node`, where its prompt ends: the prompt is
        raised above both (`cache.prompt_priority_step`).
        """
        priority += self.prompt_step
        ancestor: Node | None = node
        while ancestor is not None:
            if priority > ancestor.priority:
                ancestor.priority = priority
            ancestor = ancestor.parent

    # ------------------------------------------------------------------ steps of a walk

    def _go_on(self, node: Node, runs: KeyRuns, priority: int, again: int) -> Node:
        """Touch the path ending at `node`, count `again` hits on it, and walk on along `runs`."""
        self.clock = now = self.clock + 1
        ancestor: Node | None = node
        while ancestor is not None:
            ancestor.last_access = now
            ancestor.hit_count += again
            ancestor = ancestor.parent
        if self.step:
            self._touch_downwards(node)
        return self._descend(node, runs, 0, priority)

    def _descend(self, node: Node, runs: KeyRuns, skip: int, priority: int) -> Node:
        """Walk down from `node` along `runs` but for their first `skip` pages, adding what is
        missing.
        """
        now, step = self.clock, self.step
        hit, by_insert, joins = self._hit, self.counts_inserts, self.joins
        cut_off: Node | None = None
        beyond = False  # of what is here already
        for start, count in runs:
            if skip >= count:
                skip -= count
                continue
            if skip:
                start += skip
                count -= skip
                skip = 0
            while count:
                child = node.children.get(start)
                now += step
                if child is None:
                    if joins and not beyond:
                        cut_off, now = self._part(node, cut_off, now, priority)
                    child = Node(start, count, node, node.depth + node.length, now)
                    child.joined = joins and beyond
                    beyond = True
                    node.children[start] = child
                    self.nodes += 1
                    if by_insert:
                        child.hit_count = hit
                elif child.length > count:
                    if step:
                        cut_off = child
                        if priority > child.priority and self._raises_all:
                            child.priority = priority
                    child = self._split_walked(child, count, now)
                    now += step
                child.last_access = now
                if not by_insert or child.resident[DEVICE] == child.length:
                    child.hit_count += hit
                if priority > child.priority:
                    child.priority = priority
                node = child
                start += child.length
                count -= child.length
        if joins and not beyond:
            cut_off, now = self._part(node, cut_off, now, priority)
        self.clock = now
        if self._falling:
            self._offer_accessed(node if cut_off is None else cut_off)
        return node

    def _split_walked(self, lower: Node, count: int, now: int) -> Node:
        """`_split` on a walk, at time `now`: under "walked" it touches the whole before, and the
        upper half is made a moment later.
        """
        if not self.step:
            return self._split(lower, count)
        lower.last_access = now
        upper = self._split(lower, count)
        upper.created = now + self.step
        return upper

    def _part(
        self, node: Node, cut_off: Node | None, now: int, priority: int
    ) -> tuple[Node | None, int]:
        """A walk left what is here at `node`, at time `now`; it had cut off `cut_off`, if anything.
        What was joined to `node` is a node of its own from now on, and under "walked" both halves
        are treated as `_split_walked` does. Returns the last of what was cut off, and the time.
        """
        lower = cut_off
        if lower is None:
            lower = node.joined_below()
            if lower is None:
                return None, now
            lower.joined = False
            if not self.step:
                return None, now
            lower.last_access = now = now + self.step
            node.created = node.last_access = now = now + self.step
        at = lower.last_access
        while True:
            lower.last_access = at
            if priority > lower.priority and self._raises_all:
                lower.priority = priority
            below = lower.joined_below()
            if below is None:
                return lower, now
            lower = below

    def _touch_downwards(self, node: Node) -> None:
        """Give each node of the path ending at `node` an access time of its own, parents first."""
        path: list[Node] = []
        current: Node | None = node
        while current is not None:
            path.append(current)
            current = current.parent
        now = self.clock
        while path:
            now += self.step
            path.pop().last_access = now
        self.clock = now

    def _offer_accessed(self, node: Node) -> None:
        """A path was touched: tell the strategies that watch accesses, and offer its candidates
        again under those whose keys fall with one.
        """
        current = node
        while current.parent is not None:
            for tier in self.tiers:
                index = tier.index
                if not current.resident[index]:
                    continue
                if tier.adaptive is not None:
                    tier.adaptive.accessed(current)
                elif not current.kids[index] and not current.pins[index]:
                    tier.offer(current)
            current = current.parent
