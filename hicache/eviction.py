"""In which order cached pages leave a tier: each strategy is a key of a node, and the smallest goes
first.

Only leaves are candidates, so a strategy never has to know the tree. Facts: the strategies of
SGLang's radix cache. A strategy refuses to keep state of its own: what it needs stands in the node.
Those that must remember something are in `hicache.remembering`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hicache.node import Node
from hicache.options import EvictionName

Key = Any
Strategy = Callable[[Node], Key]


def lru(node: Node) -> Key:
    """Least recently used."""
    return node.last_access


def lfu(node: Node) -> Key:
    """Least often inserted or hit; among equals the least recently used."""
    return (node.hit_count, node.last_access)


def fifo(node: Node) -> Key:
    """Oldest first."""
    return node.created


def filo(node: Node) -> Key:
    """Youngest first."""
    return -node.created


def mru(node: Node) -> Key:
    """Most recently used first."""
    return -node.last_access


def slru(node: Node) -> Key:
    """Segmented LRU: nodes hit once before nodes hit again, each by last access."""
    return (node.hit_count >= 2, node.last_access)


def priority(node: Node) -> Key:
    """Lowest priority first; among equals the least recently used."""
    return (node.priority, node.last_access)


STRATEGIES: dict[EvictionName, Strategy] = {
    "lru": lru,
    "lfu": lfu,
    "fifo": fifo,
    "filo": filo,
    "mru": mru,
    "slru": slru,
    "priority": priority,
}

# Strategies whose key can fall while a node stays a candidate: an access must then offer the node
# again.
KEY_CAN_FALL: frozenset[EvictionName] = frozenset({"mru"})

# Strategies whose key falls when a node is cut and its upper half counts as made now
# (`cache.touch = "walked"`).
SPLIT_CAN_LOWER_KEY: frozenset[EvictionName] = frozenset({"filo"})
