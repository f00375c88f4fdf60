"""A trace's hit-rate curve as a document of plain numbers: what `hicache curve` writes and prints.

Beside the curve, of one LRU tier, stand the hits of single capacities, of tiers together, and
of the offline optimum. It reads the trace once; it prints nothing and draws nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hicache.errors import InputError
from sim.curve_points import HitCurve, curve_of
from sim.curve_sample import FEW_HITS, Sample
from sim.curve_trace import CurveRules, ExactReuse, TraceUses, read_uses
from sim.optimum import Spells, optimum_hits
from traces.reader import Trace

SCHEMA = "hicache curve 1"
# More capacities than these are written as corners only.
MOST_STEPS = 300_000
OPTIMUM_CURVE_POINTS = 48

Relation = Literal["inclusive", "exclusive", "other"]
RELATIONS: tuple[Relation, ...] = ("inclusive", "exclusive", "other")

STEPS = "every capacity at which the count changes and the one before it: nothing lies between"
CORNERS = "corners: between two, counts lie on the straight line, exactly"
ESTIMATES = "corners of an estimate: between two, counts lie on the straight line"


@dataclass(frozen=True, slots=True)
class CurveQuestions:
    """What to find out beside the curve. Capacities in pages.

    `lru_at`: hits of one LRU tier there. `optimum_at`: those of both optima, too; and with
    `optimum_curve` at `OPTIMUM_CURVE_POINTS` more, spread over the curve. `tiers`: of L1, L2 ... as
    `relation` says (see `_tiers`).
    """

    lru_at: Sequence[int] = ()
    optimum_at: Sequence[int] = ()
    optimum_curve: bool = False
    tiers: Sequence[int] = ()
    relation: Relation = "inclusive"


@dataclass(slots=True)
class CurveStudy:
    """`document` is what is written; `curve` its corners, and `optimum` (capacity, hit pages that
    may bypass, that must insert or -1) for a plot.
    """

    document: dict[str, Any]
    curve: HitCurve
    optimum: list[tuple[int, int, int]] = field(default_factory=list)

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended it: it is that of the requests that were read until then."""
        return self.document["interrupted"]


def study_curve(
    trace: Trace, rules: CurveRules, questions: CurveQuestions, sample: Sample | None = None
) -> CurveStudy:
    """Read `trace` and answer. `InputError` for what is wrong with it, or cannot be asked."""
    if sample is None:
        return _exact(trace, rules, questions)
    if questions.optimum_at or questions.optimum_curve or questions.relation == "other":
        raise InputError(
            "the optimum needs every page: leave out --sample, or --optimum and --relation other"
        )
    uses = read_uses(trace, rules, [sample])
    sampled = sample.curve(uses)
    curve = sampled.curve
    document = _head(trace, uses, f"sampled: one page in {sample.width:,}")
    document |= {
        "sample": {"rate": sample.rate, "hits": sampled.hits, "seed": sample.seed},
        "hit_pages_all": curve.hit_pages[-1],
        "at": [_estimate(curve, uses, capacity) for capacity in questions.lru_at],
    }
    if questions.tiers:
        document["tiers"] = _tiers(questions, curve, None, uses)
    if sampled.hits < FEW_HITS:
        document["warnings"].append(
            f"only {sampled.hits:,} hits were sampled: look at standard_error_pages, and take a "
            "larger sample"
        )
    document |= {
        "between_points": ESTIMATES,
        "capacity_pages": curve.capacity_pages,
        "hit_pages": curve.hit_pages,
        "standard_error_pages": sampled.standard_error_pages,
    }
    return CurveStudy(document, curve)


def _exact(trace: Trace, rules: CurveRules, questions: CurveQuestions) -> CurveStudy:
    taker = ExactReuse()
    uses = read_uses(trace, rules, [taker])
    runs = taker.reuse.hit_runs
    whole = curve_of(runs, rules.page_size_tokens, uses.shortfalls)
    answers = _Answers(uses, whole, taker)
    document = _head(trace, uses, _method(rules))
    document |= {
        "hit_pages_all": whole.hit_pages[-1],
        "hit_tokens_all": whole.hit_tokens[-1],
        "at": [{"capacity_pages": at, **answers.lru(at)} for at in questions.lru_at],
        "optimum": [answers.optimum(at) for at in questions.optimum_at],
    }
    if questions.tiers:
        document["tiers"] = _tiers(questions, whole, answers, uses)
    study = CurveStudy(document, whole)
    if questions.optimum_curve:
        places = _spread(whole.last_capacity_pages, OPTIMUM_CURVE_POINTS)
        points = [answers.optimum_pages(at) for at in places]
        document["optimum_curve"] = {
            "capacity_pages": places,
            "hit_pages_may_bypass": [bypass for _, bypass, _ in points],
            "hit_pages_must_insert": [None if insert < 0 else insert for _, _, insert in points],
        }
        study.optimum = points
    else:
        study.optimum = [answers.optimum_pages(at) for at in sorted(set(questions.optimum_at))]
    steps = whole.num_steps <= MOST_STEPS
    written = whole.every_step() if steps else whole
    document |= {
        "between_points": STEPS if steps else CORNERS,
        "capacity_pages": written.capacity_pages,
        "hit_pages": written.hit_pages,
        "hit_tokens": written.hit_tokens,
    }
    return study


def _method(rules: CurveRules) -> str:
    return "exact" if rules.exact else "exact to one page of capacity"


def _head(trace: Trace, uses: TraceUses, method: str) -> dict[str, Any]:
    rules = uses.rules
    warnings: list[str] = []
    if uses.interrupted:
        warnings.append("interrupted: the trace was not read to its end")
    return {
        "schema": SCHEMA,
        "trace": {
            "path": trace.path,
            "format": trace.format,
            "sha256": trace.facts.sha256 or None,
            "requests": uses.requests,
        },
        "interrupted": uses.interrupted,
        "page_size_tokens": rules.page_size_tokens,
        "pages": rules.pages,
        "hit_cap": rules.hit_cap,
        "outputs": rules.outputs,
        "method": method,
        "warnings": warnings + list(trace.facts.warnings),
        "prompt_pages": sum(uses.prompt_pages),
        "prompt_tokens": sum(uses.prompt_tokens),
        # The least L1 in which every request has room: a replay needs as much.
        "largest_request_pages": max(uses.held_pages),
    }


class _Answers:
    """Hits of single capacities, over all requests and over the last half of them."""

    def __init__(self, uses: TraceUses, whole: HitCurve, taker: ExactReuse) -> None:
        self._uses = uses
        self._whole = whole
        self._runs = taker.reuse.hit_runs
        self._middle = uses.requests // 2
        self._half: HitCurve | None = None
        self._spells: Spells | None = None
        self._largest = max(uses.held_pages)

    def lru(self, capacity: int) -> dict[str, Any]:
        """Of one LRU tier."""
        if self._half is None:
            page = self._uses.rules.page_size_tokens
            self._half = curve_of(self._runs, page, self._uses.shortfalls, self._middle)
        whole, half = self._whole, self._half
        return self._hits(
            (whole.pages_at(capacity), whole.tokens_at(capacity)),
            (half.pages_at(capacity), half.tokens_at(capacity)),
        )

    def optimum(self, capacity: int) -> dict[str, Any]:
        """Of one LRU tier and of both optima; None where a request is larger than the cache."""
        found: dict[str, Any] = {"capacity_pages": capacity, "lru": self.lru(capacity)}
        for admission in ("may_bypass", "must_insert"):
            found[admission] = None
            if admission == "may_bypass" or capacity >= self._largest:
                found[admission] = self._counted(self._best(capacity, admission))
        return found

    def optimum_pages(self, capacity: int) -> tuple[int, int, int]:
        """The capacity, and the pages that both optima hit; -1 where there is none."""
        insert = -1
        if capacity >= self._largest:
            insert = sum(self._best(capacity, "must_insert"))
        return capacity, sum(self._best(capacity, "may_bypass")), insert

    def bound(self, capacity: int) -> dict[str, Any]:
        """Of the optimum that may bypass."""
        return self._counted(self._best(capacity, "may_bypass"))

    def _best(self, capacity: int, admission: Any) -> list[int]:
        if self._spells is None:
            self._spells = Spells(self._runs, self._uses.requests)
        return optimum_hits(self._spells, capacity, admission, self._uses.held_pages)

    def _counted(self, hits: list[int]) -> dict[str, Any]:
        page, middle = self._uses.rules.page_size_tokens, self._middle
        tokens = [
            min(pages * page, prompt)
            for pages, prompt in zip(hits, self._uses.prompt_tokens, strict=True)
        ]
        return self._hits((sum(hits), sum(tokens)), (sum(hits[middle:]), sum(tokens[middle:])))

    def _hits(self, whole: tuple[int, int], half: tuple[int, int]) -> dict[str, Any]:
        uses, middle = self._uses, self._middle
        asked_pages, asked_tokens = sum(uses.prompt_pages), sum(uses.prompt_tokens)
        return {
            "hit_pages": whole[0],
            "hit_tokens": whole[1],
            "hit_rate_pages": whole[0] / max(1, asked_pages),
            "hit_rate_tokens": whole[1] / max(1, asked_tokens),
            "last_half": {
                "hit_pages": half[0],
                "hit_tokens": half[1],
                "of_pages": sum(uses.prompt_pages[middle:]),
                "of_tokens": sum(uses.prompt_tokens[middle:]),
            },
        }


def _estimate(curve: HitCurve, uses: TraceUses, capacity: int) -> dict[str, Any]:
    hits = curve.pages_at(capacity)
    rate = hits / max(1, sum(uses.prompt_pages))
    return {"capacity_pages": capacity, "hit_pages": hits, "hit_rate_pages": rate}


def _tiers(
    questions: CurveQuestions, curve: HitCurve, answers: _Answers | None, uses: TraceUses
) -> dict[str, Any]:
    """What several LRU tiers hit together, from the curve of one.

    "inclusive": each holds copies and every look-up touches all of them, so that together they hit
    what the largest would alone. "exclusive": a page is in one tier only, what L1 lets go of goes
    to L2 and what is hit there comes back to L1: what one of the sum of their sizes would. "other":
    only what no policy in so many pages could beat.
    """
    capacities, relation = list(questions.tiers), questions.relation
    found: dict[str, Any] = {"relation": relation, "capacity_pages": capacities}
    if relation == "other":
        assert answers is not None, "it was refused for samples"
        total = sum(capacities)
        found |= {
            "kind": "bound: the offline optimum in as many pages; no policy hits more",
            "as_one_of_pages": total,
            "together": answers.bound(total),
        }
        return found
    together: list[int] = []
    for count in range(1, len(capacities) + 1):
        part = capacities[:count]
        together.append(max(part) if relation == "inclusive" else sum(part))
    hits = [curve.pages_at(each) for each in together]
    kind = "estimate" if answers is None else _method(uses.rules)
    found |= {
        "kind": kind,
        "as_one_of_pages": together[-1],
        "hit_pages": [here - before for here, before in zip(hits, [0, *hits], strict=False)],
        "hit_pages_together": hits[-1],
        "hit_rate_pages": hits[-1] / max(1, sum(uses.prompt_pages)),
    }
    return found


def _spread(last: int, number: int) -> list[int]:
    """About `number` capacities from 1 to `last`, evenly spread over their logarithms."""
    if last < 1:
        return [1]
    return sorted({max(1, round(last ** (step / (number - 1)))) for step in range(number)})
