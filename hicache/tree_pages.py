"""Pages of the tree's tiers: taken and given, evicted when there are too few, published on nodes.

    free ---- take ----> private, or under way ---- adopt, publish, place ----> resident
      ^                          |                                                 |
      +---------- give ----------+                  evict: free, or leaving -------+

The middle one of the tree's layers (`hicache.tree_paths`). Nothing is published behind a hole, and
leaves go first, so that residency is closed under prefixes along each path. Which pages leave is
the tiers' business (`hicache.tier`); refuses to know who needs them and what a request is.
"""

from __future__ import annotations

from hicache.allocator import cut, join
from hicache.node import DEVICE, Node, Victim
from hicache.operations import PageRuns
from hicache.options import EngineOptions
from hicache.tree_paths import TreePaths


class TreePages(TreePaths):
    """The tree's pages."""

    def __init__(self, options: EngineOptions) -> None:
        super().__init__(options)
        cache = options.cache
        self.clock: int = 0  # of the walks (`hicache.tree`); what is published is no younger
        self.evicts_ahead = any(tier.high_pages for tier in self.tiers)
        # Whether a load has L1 evict as much as is loaded (`take_for_load`).
        self.loads_by_request = cache.load_eviction_amount == "request"
        self.leaving: list[Victim] = []  # what has left L1 and is being copied (write back)
        self._ages = cache.eviction in ("fifo", "filo")

    # ------------------------------------------------------------------ taking and giving pages

    def take(self, tier: int, count: int) -> PageRuns | None:
        """`count` free pages of `tier`, evicting as the strategy says; None if that many cannot be
        had.

        Nothing is evicted in vain: what cannot be reached is not begun. Only where L2 keeps what L1
        holds is that found out by trying, as in SGLang.
        """
        owner = self.tiers[tier]
        short = count - owner.allocator.free
        if short > 0:
            if short > owner.evictable:
                return None
            owner.evict(count if owner.by_request else short, self._prune)
            if owner.spares_l1 and count > owner.allocator.free:
                return None
        return owner.allocator.take(count)

    def take_for_load(self, load: int, count: int) -> PageRuns | None:
        """As `take`, of `count` pages of L1 into the first `load` of which pages of L2 are loaded:
        these are taken first, and what has to go for them is as much as they are.
        """
        owner = self.tiers[DEVICE]
        if count > owner.available:
            return None
        if load > owner.allocator.free:
            owner.evict(load, self._prune)
        loaded, rest = owner.allocator.take(load), self.take(DEVICE, count - load)
        assert rest is not None
        return join(loaded, rest)

    def give(self, tier: int, pages: PageRuns, count: int) -> None:
        """Return pages that belong to nobody else: private ones, or those of a failed arrival."""
        self.tiers[tier].allocator.give(pages, count)

    def evict(self, tier: int, count: int) -> int:
        """Free `count` pages of `tier`, leaves first; returns how many were freed (by node: maybe
        more).
        """
        return self.tiers[tier].evict(count, self._prune)

    def evict_leaving(self, count: int, load: int) -> list[Victim]:
        """Evict from L1 until `count` pages are free or about to be, as `take` does, or
        `take_for_load` where `load` is not 0; returns what L2 lacks of it, which is free once
        `leave` was called, and now belongs to the caller.
        """
        owner = self.tiers[DEVICE]
        free = owner.allocator.free
        short = count - free
        victims: list[Victim] = []
        if 0 < short <= owner.evictable:
            amount = count if owner.by_request else short
            if self.loads_by_request and free < load and amount < load:
                amount = load
            owner.leaving = victims
            owner.evict(amount, self._prune)
            owner.leaving = None
            self.leaving += victims
        return victims

    def leave(self, victims: list[Victim]) -> None:
        """What `evict_leaving` returned is free."""
        for victim in victims:
            self.leaving.remove(victim)
            self.tiers[DEVICE].allocator.give(victim.pages, victim.count)

    def evict_ahead(self) -> None:
        """Where a tier is filled above its high mark, evict down to the low one what can go."""
        for tier in self.tiers:
            used = tier.capacity - tier.allocator.free
            if tier.high_pages and used > tier.high_pages:
                tier.evict(used - tier.low_pages, self._prune)

    def cut_pages(self, pages: PageRuns, count: int) -> tuple[PageRuns, PageRuns]:
        """The first `count` pages of a list, and the rest; nothing to do where pages are only
        counted.
        """
        return cut(pages, count) if self.named else ((), ())

    # ------------------------------------------------------------------ publishing

    def adopt(
        self, pinned: Node, end: Node, held: int, pages: PageRuns
    ) -> tuple[Node, int, PageRuns, int]:
        """Make private L1 pages the tree's: `pages` are those of the path ending at `end` from page
        `held` on.

        The caller's L1 pin on `pinned`, which holds the first `held` pages, moves down to the last
        node that L1 now holds in full. Pages that L1 got meanwhile are duplicates and are freed.
        Adoption stops before a page that is arriving in L1: that one belongs to its transfer.
        Returns (the node that is now pinned, duplicates, pages left to the caller, pages adopted).

            path   |--- held ---|--- adopted ---|-dup-|--- adopted ---|   all of it published
        """
        if (
            end.parent is pinned
            and held == end.depth
            and not (end.resident[DEVICE] or end.pins[DEVICE] or end.arrival[DEVICE])
        ):
            return self._adopt_leaf(pinned, end, pages)
        path: list[Node] = []
        current = end
        while current.parent is not None and current.depth + current.length > held:
            path.append(current)
            current = current.parent
        last, duplicates, adopted = pinned, 0, 0
        while path:
            current = path.pop()
            have = current.resident[DEVICE]
            from_page = held - current.depth
            if from_page < 0:
                from_page = 0
            if have < current.length and current.arrival[DEVICE] is not None:
                break
            if have > from_page:
                doubled = have - from_page
                first, pages = self.cut_pages(pages, doubled)
                self.tiers[DEVICE].allocator.give(first, doubled)
                duplicates += doubled
            assert have >= from_page, "adopting would leave a hole"
            new = current.length - have
            if new:
                if self.named:
                    first, pages = cut(pages, new)
                    current.pages[DEVICE] = join(current.pages[DEVICE], first)
                self._grow(current, DEVICE, new, 0)
                adopted += new
                if have and self._ages:  # its tail had left: by creation that is a younger node
                    self._split(current, have)
                    current.created = self.clock
            last = current
        self.repin(pinned, last, DEVICE)
        if last is not end and not end.children:
            self._prune(end)
        return last, duplicates, pages, adopted

    def _adopt_leaf(
        self, pinned: Node, end: Node, pages: PageRuns
    ) -> tuple[Node, int, PageRuns, int]:
        """`adopt` for what is nearly always the case: one node, right below, with nothing in L1
        yet.
        """
        count = end.length
        if self.named:
            end.pages[DEVICE], pages = cut(pages, count)
        end.resident[DEVICE] = count
        end.pins[DEVICE] = 1
        pinned.kids[DEVICE] += 1
        owner = self.tiers[DEVICE]
        owner.resident += count
        if owner.notes:
            owner.arrived(end, count, 0)
        return end, 0, pages, count

    def place(self, node: Node, tier: int, first: int) -> PageRuns | None:
        """Pages `first` .. `node.end` of the path ending at `node` are in `tier` from now on: taken
        and published at once, for runs in which nothing takes time. None if they cannot be had.
        """
        count = node.depth + node.length - first
        allocator = self.tiers[tier].allocator
        if count > allocator.free:
            self.pin(node, tier)  # its head must not leave for its tail
            pages = self.take(tier, count)
            self.unpin(node, tier)
            if pages is None:
                return None
        else:
            pages = allocator.take(count)
        self.publish(node, tier, first, pages)
        return pages

    def publish(self, node: Node, tier: int, first: int, pages: PageRuns) -> None:
        """Pages `first` .. `node.end` of the path ending at `node`, none of them in `tier` or on
        the way there, are in `tier` from now on, in `pages`.
        """
        owner = self.tiers[tier]
        left = node.depth + node.length - first
        current = node
        while left:
            count = current.length - current.resident[tier]
            left -= count
            if self.named:
                pages, mine = cut(pages, left)
                current.pages[tier] = join(current.pages[tier], mine)
            self._grow(current, tier, count, 1 if tier == DEVICE else 0)
            assert current.parent is not None
            current = current.parent
        if not node.pins[tier] and not node.kids[tier]:
            owner.offer(node)

    def _grow(self, node: Node, tier: int, count: int, uncounted: int) -> None:
        """`count` more pages of `node` are published in `tier` (`Tier.arrived`)."""
        owner = self.tiers[tier]
        if not node.resident[tier]:
            assert node.parent is not None
            node.parent.kids[tier] += 1
        node.resident[tier] += count
        owner.resident += count
        if not node.pins[tier]:
            owner.evictable += count
        if owner.notes:
            owner.arrived(node, count, uncounted)
