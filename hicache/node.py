"""A node of the radix tree: a run of consecutive page keys, and what each tier holds of it.

    depth          depth + resident         depth + length
      |<-- published -->|<---- arriving or absent ---->|        in one tier

A tier always holds a *leading* run of a node's pages: eviction trims the tail and needs no split.
The state of a page of the node in tier t is thus read from three numbers:

    PUBLISHED   below resident[t]
    ARRIVING    from there on, while arrival[t] is set (may not be read, moved or handed out)
    ABSENT      from there on, otherwise

Under write back an evicted page of L1 is LEAVING, in no node's run (`Victim`), until L2 has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from hicache.arrival import Arrival
    from hicache.operations import PageRuns

DEVICE: Final = 0
HOST: Final = 1
STORAGE: Final = 2
TIERS = (DEVICE, HOST, STORAGE)
TIER_NAMES = ("device", "host", "storage")


@final
class Node:
    """`length` pages with keys `start`, `start + 1`, ... after the `depth` pages of its ancestors.

    `last_access` and `created` are ticks of the tree's clock. One access time serves all tiers: a
    match touches a node's copies in every tier at once.
    """

    __slots__ = (
        "arrival", "children", "created", "depth", "hit_count", "joined", "kids", "last_access",
        "length", "offered", "pages", "parent", "pins", "priority", "resident", "start",
    )  # fmt: skip

    def __init__(self, start: int, length: int, parent: Node | None, depth: int, tick: int) -> None:
        self.start = start
        self.length = length
        self.parent = parent
        self.depth = depth
        self.last_access = tick
        self.created = tick
        self.hit_count = 0
        self.priority = 0
        self.children: dict[int, Node] = {}
        self.resident = [0, 0, 0]
        self.kids = [
            0,
            0,
            0,
        ]  # children that hold pages, by tier: a leaf of tier t has kids[t] == 0
        self.pins = [0, 0, 0]  # users that need this node's pages in a tier to stay; closed upwards
        self.arrival: list[Arrival | None] = [None, None, None]
        self.pages: list[PageRuns] = [(), (), ()]  # physical pages of the resident run, where named
        self.offered = 0  # bit t: the node stands in tier t's queue of eviction candidates
        # One insert added it with its parent, whose only child it is: they go and are written
        # together (`cache.node_boundaries = "insert"`).
        self.joined = False

    def joined_below(self) -> Node | None:
        """The child that is one with this node, if there is one."""
        if len(self.children) != 1:
            return None
        (child,) = self.children.values()
        return child if child.joined else None

    @property
    def end(self) -> int:
        """Depth of the page after this node's last."""
        return self.depth + self.length

    def __repr__(self) -> str:
        return f"Node([{self.depth}, {self.end}), keys {self.start}.., resident {self.resident})"


@final
class Victim:
    """Pages that have left L1 and are not free before L2 has them: `count` pages of a path, from
    page `first` on, which were the tail of what L1 held of `node`. LEAVING, in the states above.

    `key` is the first one's; if L2 does not get them, `reason` is why.
    """

    __slots__ = ("count", "first", "key", "node", "pages", "reason")

    def __init__(self, node: Node, left: int, count: int, pages: PageRuns) -> None:
        self.node = node
        self.first = node.depth + left
        self.key = node.start + left
        self.count = count
        self.pages = pages
        self.reason = "transfer_failed"
