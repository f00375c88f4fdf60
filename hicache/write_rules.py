"""What is written to L2 of a path that a request left: all of it, or the nodes that were hit often
enough; in one copy, or node by node.

    root --- a --- b --- c          hits 3, 2, 1
             due   due              where 2 are asked for

A node is never hit more often than what it hangs on, so what is due is a leading part of the path,
as what L2 holds is: nothing is ever written behind a gap. Says what is due, and moves nothing.
"""

from __future__ import annotations

from typing import final

from hicache.node import HOST, Node
from hicache.options import EngineOptions


@final
class WriteRules:
    """The write policy of one engine."""

    def __init__(self, options: EngineOptions) -> None:
        cache = options.cache
        below = options.host_pages > 0
        self.writes_through = below and cache.write_policy in (
            "write_through", "write_through_selective",
        )  # fmt: skip
        self.writes_back = below and cache.write_policy == "write_back"
        self.by_node = cache.write_unit == "node"
        self._joins = cache.node_boundaries == "insert"
        self._least_hits = cache.least_write_hits
        # Whether all of an answer is due when it has ended.
        self.writes_answers = self.writes_through and self._least_hits <= 1
        # Whether `due` is always all of the path.
        self.takes_all = self._least_hits <= 1 and not self.by_node

    def due(self, node: Node) -> list[Node]:
        """The ends of the copies that bring to L2 what is due of the path ending at `node`, in
        order; each copy begins where the one before it ended.

        Empty if nothing is. What L2 has already, or is getting, may be among it.
        """
        path: list[Node] = []
        current = node
        while current.parent is not None:
            path.append(current)
            current = current.parent
        path.reverse()
        if self._least_hits > 1:
            due = 0
            while due < len(path) and self._is_due(path[due]):
                due += 1
            del path[due:]
        if not self.by_node:
            return path[-1:]
        if self._joins:
            return [
                node
                for place, node in enumerate(path)
                if place + 1 == len(path) or not path[place + 1].joined
            ]
        return path

    def _is_due(self, node: Node) -> bool:
        return (
            node.hit_count >= self._least_hits
            or node.resident[HOST] == node.length
            or node.arrival[HOST] is not None
        )
