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

The tree never sees text, time or devices. Every method is atomic: nothing here can suspend.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from hicache.allocator import cut, join
from hicache.node import DEVICE, HOST, STORAGE, TIERS, Node, Victim
from hicache.operations import PageRuns
from hicache.options import EngineOptions
from hicache.requests import KeyRuns
from hicache.tier import Tier

if TYPE_CHECKING:
    from hicache.arrival import Arrival


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
class HiRadixTree:
    """The tree and its three tiers."""

    def __init__(self, options: EngineOptions) -> None:
        cache = options.cache
        self.root = Node(-1, 0, None, 0, 0)
        host = Tier(HOST, options)
        self.tiers = (Tier(DEVICE, options, host), host, Tier(STORAGE, options))
        self.named = options.page_ids == "named"
        self.clock = 0
        self.nodes = 0
        self.splits = 0
        self.evicts_ahead = any(tier.high_pages for tier in self.tiers)
        self.step = 1 if cache.touch == "walked" else 0  # between the access times on a path
        self.joins = cache.node_boundaries == "insert"
        # Whether a load has L1 evict as much as is loaded (`take_for_load`).
        self.loads_by_request = cache.load_eviction_amount == "request"
        self.prompt_step = cache.prompt_priority_step
        # Whether an insert raises the priority of a node that it cuts as a whole: SGLang's tree
        # with an L2 does, the one without does not.
        self._raises_all = options.host_pages > 0
        self.leaving: list[Victim] = []  # what has left L1 and is being copied (write back)
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
        self._ages = cache.eviction in ("fifo", "filo")
        # Whether an access concerns the queues of candidates.
        self._falling = any(
            tier.offers_on_access or (tier.adaptive is not None and tier.adaptive.watches)
            for tier in self.tiers
        )

    # ------------------------------------------------------------------ walking

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
        runs: PageRuns = ()
        for pages in reversed(parts):
            runs = join(runs, pages)
        return runs

    # ------------------------------------------------------------------ pins

    def pin(self, node: Node, tier: int) -> None:
        """Keep what `tier` holds of the path ending at `node` until `unpin`."""
        owner = self.tiers[tier]
        current: Node | None = node
        while current is not None:
            pins = current.pins
            if not pins[tier]:
                owner.evictable -= current.resident[tier]
            pins[tier] += 1
            current = current.parent

    def unpin(self, node: Node, tier: int) -> None:
        """Undo one `pin` of the same node."""
        owner = self.tiers[tier]
        current: Node | None = node
        while current is not None:
            parent = current.parent
            pins = current.pins
            pins[tier] -= 1
            assert pins[tier] >= 0, f"{current} unpinned more often than pinned"
            if not pins[tier]:
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
            if not pins[tier]:
                owner.evictable -= current.resident[tier]
            pins[tier] += 1
            assert current.parent is not None, f"{new} is not below {old}"
            current = current.parent

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
