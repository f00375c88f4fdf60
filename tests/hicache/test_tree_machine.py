"""The tree against a dictionary of published pages: random use, with an integrity check after
every step.

The oracle knows nothing of nodes. A page is the tuple of keys that leads to it; each tier is a
dictionary of those. Which pages an eviction picks is the business of `test_eviction`; here the
tree may pick any that the rules let go.
"""

from __future__ import annotations

from adversarial_lanes import pages_of
from examples import examples
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from tree_user import Computing, TreeUser, small_tree
from tree_view import Path, claims, path_of, published

from hicache.allocator import PageAllocator
from hicache.arrival import Arrival
from hicache.errors import TransferError
from hicache.integrity import check_integrity
from hicache.node import DEVICE, HOST, STORAGE, TIERS, Node
from hicache.operations import PageRuns
from hicache.options import EVICTION_NAMES

contents = st.lists(st.integers(0, 1), min_size=1, max_size=6).map(tuple)
places = st.integers(0, 99)
tiers = st.sampled_from(TIERS)
ROUTES = [(DEVICE, HOST), (HOST, STORAGE)]


def leading(path: Path, held: dict[Path, int | None]) -> int:
    """How many leading pages of a path are held."""
    return next((n for n in range(len(path)) if path[: n + 1] not in held), len(path))


class Flight:
    """An arrival under way, as the oracle sees it."""

    def __init__(self, arrival: Arrival, path: Path, before: Flight | None) -> None:
        self.arrival = arrival
        self.path = path
        self.before = before
        self.published: bool | None = None

    @property
    def pages(self) -> list[Path]:
        """The pages that it brings."""
        return [self.path[: end + 1] for end in range(self.arrival.first, len(self.path))]


class TreeMachine(RuleBasedStateMachine):
    """Everything that can be done to a tree, in any order."""

    @initialize(
        capacities=st.tuples(st.integers(6, 20), st.integers(1, 20), st.integers(1, 20)),
        eviction=st.sampled_from(EVICTION_NAMES),
        by=st.sampled_from(["node", "page"]),
        page_ids=st.sampled_from(["named", "counted"]),
        amounts=st.tuples(*[st.sampled_from(["shortfall", "shortfall", "request"])] * 2),
        victims=st.sampled_from(["any", "any", "not_in_l1", "duplicates_first"]),
        touch=st.sampled_from(["matched", "walked"]),
        nodes=st.sampled_from(["run", "insert"]),
        prompts=st.lists(contents, max_size=6),
        copied=st.lists(st.sampled_from(ROUTES[:2]), max_size=4),
    )
    def begin(
        self, capacities, eviction, by, page_ids, amounts, victims, touch, nodes, prompts, copied
    ):
        self.tree = small_tree(
            *capacities,
            page_ids=page_ids,
            eviction=eviction,
            eviction_granularity=by,
            l1_eviction_amount=amounts[0],
            l2_eviction_amount=amounts[1],
            l2_victims=victims,
            touch=touch,
            node_boundaries=nodes,
        )
        self.by_page = by == "page"
        self.by_request = (amounts[0] == "request", amounts[1] == "request", False)
        self.spares_l1 = victims == "not_in_l1"
        self.capacities = capacities
        self.user = TreeUser(self.tree)
        self.held: list[dict[Path, int | None]] = [{}, {}, {}]
        self.pins: list[tuple[Node, int, Path]] = []
        self.flights: list[Flight] = []
        self.private: list[tuple[PageRuns, int]] = []
        self.computing: list[Computing] = []
        self.next_private_key = -1000
        for prompt in prompts:
            self.compute(prompt, 0)
        for place, (source, target) in enumerate(copied):
            if self.held[source]:
                self.bring(place, source, target)
                if self.flights:
                    self.settle(0, False)

    # ------------------------------------------------------------------ the oracle

    def path(self, contents) -> Path:
        return tuple(self.user.keys.keys(contents))

    def protected(self, tier: int) -> set[Path]:
        """Pages on a pinned path."""
        paths = [path for _, where, path in self.pins if where == tier]
        for flight in self.flights:
            if tier in (flight.arrival.source, flight.arrival.target):
                paths.append(flight.path)
        if tier == DEVICE:
            paths += [self.path(each.contents)[: each.held] for each in self.computing]
        return {path[: end + 1] for path in paths for end in range(len(path))}

    def free(self, tier: int) -> int:
        arriving = sum(len(f.pages) for f in self.flights if f.arrival.target == tier)
        private = 0
        if tier == DEVICE:
            private = sum(count for _, count in self.private)
            private += sum(len(each.contents) - each.held for each in self.computing)
        return self.capacities[tier] - len(self.held[tier]) - arriving - private

    def may_go(self, tier: int, extra_pins: Path = ()) -> set[Path]:
        """Pages that no pin and no rule keeps."""
        safe = self.protected(tier)
        safe |= {extra_pins[: end + 1] for end in range(len(extra_pins))}
        if tier == HOST and self.spares_l1:
            safe |= set(self.held[DEVICE])
        return set(self.held[tier]) - safe

    def evicted(self, tier: int, asked: int, short: int, extra_pins: Path = ()) -> None:
        """`asked` pages of `tier` were wanted and `short` of them not free: look at what the tree
        picked.
        """
        held, may_go = self.held[tier], self.may_go(tier, extra_pins)
        now = published(self.tree, tier)
        gone = set(held) - set(now)
        assert all(now[path] == held[path] for path in now), "a published page moved"
        assert gone <= may_go, "a page was evicted that had to stay"
        assert all(path[:-1] in now or len(path) == 1 for path in now), "a hole"
        amount = min(asked if self.by_request[tier] else short, len(may_go))
        if short <= 0:
            assert not gone
        elif self.by_page:
            assert len(gone) == amount
        else:
            assert len(gone) >= amount
        self.held[tier] = now

    def taken(self, tier: int, asked: int, short: int, extra_pins: Path = (), *, had: bool) -> None:
        """The same of an allocation, which does not evict what would be in vain."""
        unpinned = len(set(self.held[tier]) - self.protected(tier) - self.paths(extra_pins))
        tries = tier == HOST and self.spares_l1 and short <= unpinned
        self.evicted(tier, asked, short if had or tries else 0, extra_pins)

    def paths(self, path: Path) -> set[Path]:
        return {path[: end + 1] for end in range(len(path))}

    def can_take(self, tier: int, count: int, extra_pins: Path = ()) -> bool:
        return count <= self.free(tier) + len(self.may_go(tier, extra_pins))

    def bringing(self, path: Path, tier: int) -> Flight | None:
        """The flight that brings the last page of `path` into `tier`."""
        for flight in self.flights:
            if flight.arrival.target == tier and path in flight.pages:
                return flight
        return None

    def known(self, place: int, tier: int) -> tuple[int, ...] | None:
        """The contents of some prompt that `tier` holds the last page of."""
        paths = [path for path in self.held[tier] if path[-1] >= 0]
        return self.user.keys.contents(paths[place % len(paths)]) if paths else None

    # ------------------------------------------------------------------ the rules

    @rule(contents=contents)
    def match(self, contents):
        path = self.path(contents)
        hits = self.user.match(contents)
        found = path_of(hits.node)
        assert found == path[: hits.depth]
        assert [hits.device, hits.host, hits.storage] == [leading(path, h) for h in self.held]
        # No tier has a gap that another one fills: the nearest tier of each page is known from the
        # three leading hits, and nothing that is held anywhere is out of a walk's reach.
        anywhere = self.held[DEVICE] | self.held[HOST] | self.held[STORAGE]
        assert leading(path, anywhere) == max(hits.device, hits.host, hits.storage)
        for tier in TIERS:
            # A page stays on its way although the one in front of it failed, until its own end.
            expected, coming = leading(found, self.held[tier]), None
            for end in range(1, hits.depth + 1):
                flight = self.bringing(path[:end], tier)
                if flight is not None:
                    expected, coming = end, flight
            covered, arrival = self.tree.covered(hits.node, tier)
            assert covered == expected
            assert arrival is (coming.arrival if coming is not None else None)
            for depth in range(hits.depth):
                flight = self.bringing(path[: depth + 1], tier)
                arrival = self.tree.arriving_at(hits.node, tier, depth)
                assert arrival is (flight.arrival if flight is not None else None)

    @rule(contents=contents, priority=st.integers(0, 2))
    def compute(self, contents, priority):
        before = len(self.computing)
        self.start(contents)
        if len(self.computing) > before:
            self.finish(before, priority)

    @rule(contents=contents)
    def start_two(self, contents):
        """Two requests compute the same."""
        self.start(contents)
        self.start(contents)

    @rule(contents=contents)
    def start(self, contents):
        """A request begins to compute what L1 lacks of its prompt."""
        path = self.path(contents)
        known = leading(path, self.held[DEVICE])
        missing = len(path) - known
        short = missing - self.free(DEVICE)
        can = self.can_take(DEVICE, missing, path[:known])
        computing = self.user.start(contents)
        assert (computing is not None) == can
        self.taken(DEVICE, missing, short, path[:known], had=can)
        if computing is not None:
            assert computing.held == known
            assert path_of(computing.node) == path[:known]
            self.computing.append(computing)

    @precondition(lambda self: self.computing)
    @rule(place=places, priority=st.integers(0, 2))
    def finish(self, place, priority):
        """It is done: the tree takes what nobody else has published or is bringing."""
        computing = self.computing.pop(place % len(self.computing))
        path = self.path(computing.contents)
        beyond = [path[:end] for end in range(computing.held + 1, len(path) + 1)]
        arriving = [page for page in beyond if self.bringing(page, DEVICE)]
        left = self.user.finish(computing, priority)
        now = published(self.tree, DEVICE)
        assert all(now[page] == number for page, number in self.held[DEVICE].items())
        new = set(now) - set(self.held[DEVICE])
        if arriving:  # all in front of those was published before, so that nothing is left to take
            assert not new
            assert len(beyond) - beyond.index(arriving[0]) <= left <= len(beyond)
        else:
            assert left == 0
            assert new == set(beyond) - set(self.held[DEVICE])
        if self.tree.named:  # each page is the one that it was computed into
            mine = dict(zip(beyond, pages_of(computing.pages), strict=True))
            assert all(now[page] == mine[page] for page in new)
        self.held[DEVICE] = now

    @precondition(lambda self: self.held[DEVICE])
    @rule(place=places, count=st.integers(1, 3))
    def answer(self, place, count):
        """Cache an output behind a prompt that L1 holds: keys that nobody else has."""
        contents = self.known(place, DEVICE)
        if contents is None or not self.can_take(DEVICE, count, self.path(contents)):
            return
        hits = self.user.match(contents)
        assert hits.device == len(contents)
        self.tree.pin(hits.node, DEVICE)
        short = count - self.free(DEVICE)
        pages = self.tree.take(DEVICE, count)
        self.evicted(DEVICE, count, short, self.path(contents))
        end = self.tree.append(hits.node, ((self.next_private_key, count),))
        node, duplicates, pages, adopted = self.tree.adopt(hits.node, end, len(contents), pages)
        assert (duplicates, pages, adopted) == (0, (), count)
        self.tree.unpin(node, DEVICE)
        keys = tuple(range(self.next_private_key, self.next_private_key + count))
        self.next_private_key += count + 1
        now = published(self.tree, DEVICE)
        whole = self.path(contents) + keys
        new = {whole[:end] for end in range(len(contents) + 1, len(whole) + 1)}
        assert set(now) - set(self.held[DEVICE]) == new
        self.held[DEVICE] = now

    @rule(contents=contents, place=places, tier=tiers)
    def pin(self, contents, place, tier):
        node = self.user.match(self.known(place, tier) or contents).node
        self.tree.pin(node, tier)
        self.pins.append((node, tier, path_of(node)))

    @precondition(lambda self: self.pins)
    @rule(place=places)
    def unpin(self, place):
        node, tier, path = self.pins.pop(place % len(self.pins))
        assert path_of(node) == path, "a pinned node moved"
        self.tree.unpin(node, tier)

    @precondition(lambda self: self.held[DEVICE])
    @rule(place=places)
    def back_up(self, place):
        self.bring(place, DEVICE, HOST)

    @precondition(lambda self: self.held[HOST])
    @rule(place=places, to=st.sampled_from([DEVICE, STORAGE]))
    def restore_or_store(self, place, to):
        self.bring(place, HOST, to)

    @precondition(lambda self: self.held[STORAGE])
    @rule(place=places)
    def promote(self, place):
        self.bring(place, STORAGE, HOST)

    def bring(self, place, source, target):
        """Begin to bring a prompt that `source` holds into `target`."""
        contents = self.known(place, source)
        if contents is None:
            return
        hits = self.user.match(contents)
        have = (hits.device, hits.host, hits.storage)[source]
        assert have == len(contents)
        node = self.tree.cut_at(hits.node, have)
        path = path_of(node)
        assert path == self.path(contents)[:have]
        first, _ = self.tree.covered(node, target)
        before = self.bringing(path[:first], target) if first else None
        count = len(path) - first
        if count <= 0:
            assert self.user.arrive(node, source, target) is None
            return
        short = count - self.free(target)
        can = self.can_take(target, count, path)
        arrival = self.user.arrive(node, source, target)
        assert (arrival is not None) == can
        self.taken(target, count, short, path, had=can)
        if arrival is not None:
            assert arrival.count == count
            assert arrival.after is (before.arrival if before is not None else None)
            self.flights.append(Flight(arrival, path, before))

    @precondition(lambda self: self.flights)
    @rule(place=places, fails=st.booleans())
    def settle(self, place, fails):
        """Arrivals end in any order, except that none can be published before the one in front."""
        flight = self.flights[place % len(self.flights)]
        while flight.before is not None and flight.before.published is None:
            if fails:
                break  # its own copy may fail first
            flight = flight.before
        fails = fails or (flight.before is not None and not flight.before.published)
        arrival = flight.arrival
        pages = pages_of(arrival.pages)
        assert path_of(arrival.node) == flight.path
        self.user.settle(arrival, TransferError("it failed") if fails else None)
        self.flights.remove(flight)
        flight.published = arrival.published = not fails
        if not fails:
            numbers = pages if self.tree.named else [None] * arrival.count
            self.held[arrival.target].update(zip(flight.pages, numbers, strict=True))

    @rule(tier=tiers, count=st.integers(1, 8))
    def evict(self, tier, count):
        freed = self.tree.evict(tier, count)
        before = len(self.held[tier])
        self.evicted(tier, count, min(count, len(self.may_go(tier))))
        assert before - len(self.held[tier]) == freed

    @rule(count=st.integers(1, 6))
    def take_private(self, count):
        can, short = self.can_take(DEVICE, count), count - self.free(DEVICE)
        pages = self.tree.take(DEVICE, count)
        assert (pages is not None) == can
        self.taken(DEVICE, count, short, had=can)
        if pages is not None:
            self.private.append((pages, count))

    @precondition(lambda self: self.private)
    @rule(place=places)
    def give_private(self, place):
        self.tree.give(DEVICE, *self.private.pop(place % len(self.private)))

    @rule(contents=contents, data=st.data())
    def cut(self, contents, data):
        hits = self.user.match(contents)
        depth = data.draw(st.integers(0, hits.depth))
        node = self.tree.cut_at(hits.node, depth)
        assert path_of(node) == self.path(contents)[:depth]
        assert self.tree.holder(hits.node, depth) is node

    # ------------------------------------------------------------------ after every step

    @invariant()
    def adds_up(self):
        check_integrity(self.tree)
        for tier in TIERS:
            owner = self.tree.tiers[tier]
            assert published(self.tree, tier) == self.held[tier]
            assert owner.resident == len(self.held[tier])
            assert owner.allocator.free == self.free(tier)
            assert owner.evictable == len(set(self.held[tier]) - self.protected(tier))

    @invariant()
    def every_page_has_one_owner(self):
        for tier in TIERS:
            allocator = self.tree.tiers[tier].allocator
            if not isinstance(allocator, PageAllocator):
                continue
            owned = [page for page in self.held[tier].values() if page is not None]
            for flight in self.flights:
                if flight.arrival.target == tier:
                    owned += pages_of(flight.arrival.pages)
            if tier == DEVICE:
                owned += [page for pages, _ in self.private for page in pages_of(pages)]
                owned += [page for each in self.computing for page in pages_of(each.pages)]
            owned += pages_of(tuple(allocator.free_runs()))
            assert sorted(owned) == list(range(self.capacities[tier]))

    def teardown(self):
        if not hasattr(self, "tree"):
            return
        while self.flights:
            self.settle(0, self.next_private_key % 2 == 0)
        while self.pins:
            self.unpin(0)
        while self.private:
            self.give_private(0)
        while self.computing:
            self.finish(0, 0)
        assert claims(self.tree) == []
        for tier in TIERS:
            self.tree.evict(tier, 1000)
            assert not published(self.tree, tier)
            assert self.tree.tiers[tier].allocator.free == self.capacities[tier]
        assert self.tree.nodes == 0, "an empty tree still has nodes"


TestTree = TreeMachine.TestCase
TestTree.settings = examples(60)
