"""The tree seen from outside, written out page by page. The only test code that knows its nodes."""

from __future__ import annotations

from collections.abc import Iterator

from adversarial_lanes import pages_of

from hicache.node import DEVICE, TIERS, Node
from hicache.operations import PageRuns
from hicache.tree import HiRadixTree

Path = tuple[int, ...]  # the keys of a page and of all pages in front of it


def bare_nodes_of(tree: HiRadixTree) -> Iterator[Node]:
    """Every node but the root; parents first. A path takes far longer to write out than to pass."""
    todo = list(tree.root.children.values())
    while todo:
        node = todo.pop()
        yield node
        todo.extend(node.children.values())


def nodes_of(tree: HiRadixTree) -> Iterator[tuple[Node, Path]]:
    """Every node but the root, with the keys of its ancestors; parents first."""
    todo: list[tuple[Node, Path]] = [(child, ()) for child in tree.root.children.values()]
    while todo:
        node, before = todo.pop()
        yield node, before
        path = before + tuple(range(node.start, node.start + node.length))
        todo.extend((child, path) for child in node.children.values())


def path_of(node: Node) -> Path:
    """The keys of the path that ends at `node`."""
    keys: Path = ()
    while node.parent is not None:
        keys = tuple(range(node.start, node.start + node.length)) + keys
        node = node.parent
    return keys


def published(tree: HiRadixTree, tier: int) -> dict[Path, int | None]:
    """Each published page of `tier`: its path, and its page number where pages have one."""
    found: dict[Path, int | None] = {}
    for node, before in nodes_of(tree):
        numbers = pages_of(node.pages[tier])
        path = before
        for place in range(node.resident[tier]):
            path = (*path, node.start + place)
            found[path] = numbers[place] if tree.named else None
    return found


def count_published(tree: HiRadixTree, tier: int) -> int:
    """How many pages `published` finds. Each path is known by a number instead of all its keys,
    which are as many as the pages squared.
    """
    numbers: dict[tuple[int, int], int] = {}
    found: set[int] = set()
    todo = [(child, 0) for child in tree.root.children.values()]
    while todo:
        node, path = todo.pop()
        below = path
        for place in range(max(node.length, node.resident[tier])):
            path = numbers.setdefault((path, node.start + place), len(numbers) + 1)
            if place < node.resident[tier]:
                found.add(path)
            if place < node.length:
                below = path
        todo.extend((child, below) for child in node.children.values())
    return len(found)


def keys_by_page(tree: HiRadixTree, tier: int) -> dict[int, int]:
    """The key of each page of `tier` that is published, or leaving it, by page number."""
    keys: dict[int, int] = {}

    def add(runs: PageRuns, key: int) -> None:
        for first, length in runs:
            keys.update(zip(range(first, first + length), range(key, key + length), strict=True))
            key += length

    for node in bare_nodes_of(tree):
        add(node.pages[tier], node.start)
    if tier == DEVICE:
        for victim in tree.leaving:
            add(victim.pages, victim.key)
    return keys


def claims(tree: HiRadixTree) -> list[str]:
    """Every pin and arrival that is left, in words."""
    found = [f"pin on the root in tier {tier}" for tier in TIERS if tree.root.pins[tier]]
    for node in bare_nodes_of(tree):
        for tier in TIERS:
            if node.pins[tier]:
                found.append(f"{node.pins[tier]} pins on {node} in tier {tier}")
            if node.arrival[tier] is not None:
                found.append(f"arrival at {node} in tier {tier}")
    return found
