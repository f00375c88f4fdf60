"""Small studies for the tests of comparisons, and classes of a user's own to put into them."""

from __future__ import annotations

from pathlib import Path

from sim.compare import Comparison, Options, compare
from sim.compare_variants import Study, Variant, variant_of
from traces.generator import AgentOptions, write_trace

TIERS = {"tiers.l1": "40000tokens", "tiers.l2": "2x", "tiers.l3": "10x"}
OPTIONS = AgentOptions(
    hours=0.03, turns_mean=8, sessions_per_hour=3000, system_prompt_median_tokens=1000,
    longest_prompt_tokens=8000,
)  # fmt: skip

POLICIES = """
from hicache.restore_policy import Choice


class Always:
    def __init__(self, page_size_tokens, belief):
        assert page_size_tokens == 64
        assert belief.bytes_per_token > 0

    def __call__(self, hits):
        return Choice(max(hits.host, hits.storage), "mine")


class Says(Always):
    said = None

    def __call__(self, hits):
        return self.said


class NotAChoice(Says):
    said = 7


class Backwards(Says):
    said = Choice(-1, "x")


class NoReason(Always):
    def __call__(self, hits):
        return Choice(hits.device, "")


class Raises(Always):
    def __call__(self, hits):
        return 1 // 0


class NeedsMore:
    def __init__(self, page_size_tokens, belief, more):
        pass

    def __call__(self, hits):
        pass


class CannotBeMade(Always):
    def __init__(self, page_size_tokens, belief):
        raise RuntimeError("no")


class TakesNothing(Always):
    def __call__(self):
        pass


class NoCall:
    pass


def a_function(hits):
    pass


class lru:
    def __call__(self, node):
        return node.last_access


class lfu:
    def __call__(self, node):
        return (node.hit_count, node.last_access)


class mru:
    def __call__(self, node):
        return -node.last_access


class slru:
    def __call__(self, node):
        return (node.hit_count >= 2, node.last_access)


class Text:
    def __call__(self, node):
        return "key"


class NotANumber:
    def __call__(self, node):
        return float("nan")
"""


def write_small_trace(path: Path, seed: int = 0) -> Path:
    """A few hundred requests on which every tier is used."""
    from dataclasses import replace

    write_trace(replace(OPTIONS, seed=seed), path)
    return path


def study(traces: list[Path], *variants: str | Variant, **common: object) -> Study:
    """Variants as on the command line, over traces whose tiers are small."""
    made = tuple(each if isinstance(each, Variant) else variant_of(each) for each in variants)
    options = TIERS | {key.replace("__", "."): value for key, value in common.items()}
    return Study(tuple(map(str, traces)), made, common=options)


def found(traces: list[Path], *variants: str | Variant, **common: object) -> Comparison:
    return compare(study(traces, *variants, **common), Options(resamples=200))
