"""Whether a hit below L1 is worth bringing back, and how much of it. A policy sees the match, the
belief and, where it may, what the engine has in front of the request; never the devices.

    cost    the whole hit of L2, of L3, or nothing: what saves most
    meet    any part of it: load the head and compute the tail, where both end together
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hicache.cost_model import SAFETY, CostModel
from hicache.operations import Direction
from hicache.options import RestoreOptions
from hicache.outlook import NO_WAITS, Outlook
from hicache.queue_ahead import QueueAhead
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


def make_policy(
    options: RestoreOptions,
    page_size_tokens: int,
    belief: CostModel,
    chunk_tokens: int = 8192,
    ahead: QueueAhead | None = None,
) -> Policy:
    """The policy that `options` name, over pages of `page_size_tokens` tokens and prefill steps of
    at most `chunk_tokens`. `ahead`: what is in front of a request (`restore.queue_aware`).
    """
    if options.policy == "never":
        return lambda hits: Choice(hits.device, "never")
    if options.policy == "always":
        return lambda hits: Choice(max(hits.host, hits.storage), "always")
    if options.policy == "threshold":
        return _threshold(options.threshold_tokens, page_size_tokens)
    if options.policy == "meet":
        outlook = Outlook(options, page_size_tokens, chunk_tokens, belief)
        return MeetPolicy(options.probe_every, outlook, ahead)
    return CostPolicy(options, page_size_tokens, belief, ahead)


def _threshold(threshold_tokens: int, page_size_tokens: int) -> Policy:
    def choose(hits: Match) -> Choice:
        goal = max(hits.host, hits.storage)
        if (goal - hits.device) * page_size_tokens < threshold_tokens:
            return Choice(hits.device, "below_threshold")
        return Choice(goal, "threshold")

    return choose


class Refusals:
    """Those of one policy: every `probe_every`-th is restored all the same (0: none), so that one
    slow sample cannot stop sampling for ever.
    """

    def __init__(self, probe_every: int) -> None:
        self._probe_every = probe_every
        self.count = 0

    def refuse(self, hits: Match) -> Choice:
        """The answer where no restore pays."""
        self.count += 1
        if self._probe_every and self.count % self._probe_every == 0:
            return Choice(max(hits.host, hits.storage), "probe")
        return Choice(hits.device, "recompute_cheaper")


class CostPolicy:
    """Restores from the tier with the largest believed gain over recomputing, if there is one."""

    def __init__(
        self,
        options: RestoreOptions,
        page_size_tokens: int,
        belief: CostModel,
        ahead: QueueAhead | None = None,
    ) -> None:
        self._refusals = Refusals(options.probe_every)
        self._from_prefill = options.start == "prefill"
        self._page = page_size_tokens
        self._belief = belief
        self._ahead = ahead

    def __call__(self, hits: Match) -> Choice:
        best, goal = 0.0, hits.device
        if hits.host > hits.device:
            gain = self._gain(hits.host - hits.device, FROM_HOST)
            if gain > best:
                best, goal = gain, hits.host
        if hits.storage > hits.host and hits.storage > hits.device:
            gain = self._gain(hits.storage - hits.device, FROM_STORAGE)
            if gain > best:
                best, goal = gain, hits.storage
        if goal > hits.device:
            return Choice(goal, "cost")
        return self._refusals.refuse(hits)

    def _gain(self, pages: int, ways: tuple[Direction, ...]) -> float:
        """Believed seconds saved by restoring `pages` pages, each copy being one of `ways`."""
        belief, tokens = self._belief, pages * self._page
        if self._ahead is None:
            return belief.benefit_seconds(tokens, ways)
        # benefit = R(n) - 1.1 * sum T, with the waits on both sides: each copy begins when it has
        # its lane, and what is loaded before the GPU has time costs nothing.
        waits, size_bytes = self._ahead.waits(), tokens * belief.bytes_per_token
        load = SAFETY * belief.transfer_seconds("h2d", size_bytes)
        begun, gpu = 0.0, waits.gpu
        if len(ways) > 1:
            begun = waits.read + SAFETY * belief.transfer_seconds("s2h", size_bytes)
        if self._from_prefill:
            ready = max(begun, gpu) + load
        else:
            ready = max(max(begun, waits.link) + load, gpu)
        return waits.gpu + belief.recompute_seconds(tokens) - ready


class MeetPolicy:
    """Restores up to the page from which on the rest of the prompt is computed as fast as the pages
    before it are loaded (`hicache.outlook`): to any page, to the end of the hit, or nothing.
    """

    def __init__(self, probe_every: int, outlook: Outlook, ahead: QueueAhead | None = None) -> None:
        self._refusals = Refusals(probe_every)
        self._outlook = outlook
        self._ahead = ahead

    def __call__(self, hits: Match) -> Choice:
        self._outlook.look(hits, NO_WAITS if self._ahead is None else self._ahead.waits())
        goal, deepest = self._outlook.best_goal(), max(hits.host, hits.storage)
        if goal == hits.device:
            return self._refusals.refuse(hits)
        return Choice(goal, "cost") if goal == deepest else Choice(goal, "meet")
