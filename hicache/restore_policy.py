"""Whether a hit below L1 is worth bringing back. A policy sees the match and the belief, never the
devices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hicache.cost_model import CostModel
from hicache.operations import Direction
from hicache.options import RestoreOptions
from hicache.tree import Match

FROM_HOST: tuple[Direction, ...] = ("h2d",)
FROM_STORAGE: tuple[Direction, ...] = ("s2h", "h2d")


class Choice(NamedTuple):
    """Restore up to page `goal` (the L1 hit: nothing), and why, in a word that goes into the
    result.
    """

    goal: int
    reason: str


Policy = Callable[[Match], Choice]


def make_policy(options: RestoreOptions, page_size_tokens: int, belief: CostModel) -> Policy:
    """The policy that `options` name, over pages of `page_size_tokens` tokens."""
    if options.policy == "never":
        return lambda hits: Choice(hits.device, "never")
    if options.policy == "always":
        return lambda hits: Choice(max(hits.host, hits.storage), "always")
    if options.policy == "threshold":
        return _threshold(options.threshold_tokens, page_size_tokens)
    return CostPolicy(options.probe_every, page_size_tokens, belief)


def _threshold(threshold_tokens: int, page_size_tokens: int) -> Policy:
    def choose(hits: Match) -> Choice:
        goal = max(hits.host, hits.storage)
        if (goal - hits.device) * page_size_tokens < threshold_tokens:
            return Choice(hits.device, "below_threshold")
        return Choice(goal, "threshold")

    return choose


class CostPolicy:
    """Restores from the tier with the largest believed gain over recomputing, if any is positive.

    Every `probe_every`-th refusal is restored all the same (0: never), so that one slow sample
    cannot stop sampling for ever.
    """

    def __init__(self, probe_every: int, page_size_tokens: int, belief: CostModel) -> None:
        self._probe_every = probe_every
        self._page = page_size_tokens
        self._belief = belief
        self.refusals = 0

    def __call__(self, hits: Match) -> Choice:
        best, goal = 0.0, hits.device
        if hits.host > hits.device:
            tokens = (hits.host - hits.device) * self._page
            gain = self._belief.benefit_seconds(tokens, FROM_HOST)
            if gain > best:
                best, goal = gain, hits.host
        if hits.storage > hits.host and hits.storage > hits.device:
            tokens = (hits.storage - hits.device) * self._page
            gain = self._belief.benefit_seconds(tokens, FROM_STORAGE)
            if gain > best:
                best, goal = gain, hits.storage
        if goal > hits.device:
            return Choice(goal, "cost")
        self.refusals += 1
        if self._probe_every and self.refusals % self._probe_every == 0:
            return Choice(max(hits.host, hits.storage), "probe")
        return Choice(hits.device, "recompute_cheaper")
