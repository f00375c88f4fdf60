"""Which points of a plan are simulated: those that the hit curves leave open.

    1  a pass over the trace for each page size: its curve; sizes of L2 and L3 to choose from
    2  L1 alone, which shows how much of it is left to cache in
    3  the page size that hits most, the first policy: every pair that no cheaper one matches
    4  the other policies: wherever there is an L3, else on the front only; other page sizes: on the
       front, unless their curve hits less

What is left out is counted, by reason; `exhaustive` leaves nothing out. It refuses to judge what
was found.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace

from hicache.errors import InputError
from scenario.geometry import load_geometry
from scenario.resolve import resolve
from sim.curve_points import curve_of
from sim.curve_trace import CurveRules, ExactReuse, read_uses
from sim.own_policy import owned
from sim.plan import PAGE_SIZES, Plan, Point
from sim.plan_sizes import Pair, Sizing, ladder_of, worth_a_run
from sim.sweep_cell import Done, Job, job_of

# Hands jobs to workers; results come in any order. The text says what they are for.
Runner = Callable[[Sequence[Job], str], Generator[Done]]


def search(plan: Plan, run: Runner, priced: str) -> None:
    """Fill the plan. Ctrl-C ends it with what is done (`plan.interrupted`). Raises InputError."""
    try:
        _read_curves(plan)
        base = _base_page(plan)
        alone = Point(base, plan.wishes.policies[0], Pair(0, 0))
        _run(plan, run, [alone], "L1 alone")
        if alone in plan.figures:
            _take_from_l1(plan, plan.figures[alone]["hit_rates.all.tokens.device"])
            plan.ladder = ladder_of(plan.sizings[base], plan.limits, plan.given, priced)
            _simulate(plan, run, base, priced)
    except KeyboardInterrupt:
        if not plan.figures:
            raise
        plan.interrupted = True
    if not plan.figures and plan.failed:
        raise InputError(next(iter(plan.failed.values())))


def _read_curves(plan: Plan) -> None:
    base, wishes = plan.base, plan.wishes
    for page in wishes.page_sizes or PAGE_SIZES:
        options = {"tiers.page_size_tokens": page, "tiers.l2": "0", "tiers.l3": "0"}
        rules = CurveRules(page, base.cache.pages, base.cache.hit_cap, base.cache.outputs)
        taker = ExactReuse()
        try:
            scenario = wishes.load(options)
            resolved = resolve(scenario, plan.profile, load_geometry(base.model.name)).options
            uses = read_uses(plan.trace, rules, [taker])
        except InputError:
            if wishes.page_sizes:
                raise
            continue  # a usual size that does not suit the trace's blocks
        if uses.interrupted:
            raise KeyboardInterrupt
        curve = curve_of(taker.reuse.hit_runs, page, uses.shortfalls)
        plan.reuses[page] = uses, taker
        plan.sizings[page] = Sizing(
            page, resolved.page_bytes, resolved.device_pages, curve, sum(uses.prompt_tokens),
            max(uses.held_pages),
        )  # fmt: skip
    if not plan.sizings:
        raise InputError(
            f"no page size of {', '.join(map(str, PAGE_SIZES))} suits the trace's blocks of "
            f"{plan.trace.block_tokens} tokens: give --page-size"
        )


def _take_from_l1(plan: Plan, hit_rate: float) -> None:
    """Requests that run take room in L1, so that it hits what the curve has of fewer pages: of as
    many as the replay of L1 alone, which hit `hit_rate` of all tokens, shows.
    """
    for page, sizing in plan.sizings.items():
        pages = sizing.pages_for(hit_rate * sizing.asked_tokens)
        plan.sizings[page] = replace(sizing, l1_pages=min(sizing.l1_pages, pages))


def _base_page(plan: Plan) -> int:
    """The page size whose curve hits most where L1 ends and all the way up; the larger of two that
    are as good.
    """
    margin = plan.wishes.tolerance

    def worth(sizing: Sizing) -> float:
        places = [sizing.l1_pages * scale for scale in (1, 2, 4, 8, 64)]
        hits = sum(sizing.curve.tokens_at(place) for place in places) / len(places)
        return hits / max(1, sizing.asked_tokens)

    best = max(map(worth, plan.sizings.values()))
    return max(page for page, each in plan.sizings.items() if worth(each) >= best - margin)


def _simulate(plan: Plan, run: Runner, base: int, priced: str) -> None:
    wishes = plan.wishes
    pairs = [pair for pair in plan.ladder.pairs() if not plan.limits.refusal(pair, priced)]
    first, *others = wishes.policies
    everything = list(_everything(plan, pairs))
    plan.would_run = len(everything)
    if wishes.exhaustive:
        _run(plan, run, everything, "all combinations")
        return
    kept, dropped = worth_a_run(pairs, plan.sizings[base], plan.limits, wishes.tolerance)
    _skip(plan, "a cheaper pair hits as much", dropped)
    _run(plan, run, [Point(base, first, pair) for pair in kept], "sizes")
    front_pairs = {point.pair for point in plan.front()}
    # What is read from L3 is what policies differ in.
    open_pairs = [pair for pair in kept if pair.l3_bytes or (pair.l2_bytes and pair in front_pairs)]
    _run(plan, run, [Point(base, policy, pair) for policy in others for pair in open_pairs],
         "policies")  # fmt: skip
    closed = sum(1 for pair in kept if pair.l2_bytes) - len(open_pairs)
    _skip(plan, "another policy without L3, off the front", len(others) * closed)
    front = plan.front()
    points = [
        Point(page, point.policy, point.pair)
        for page in plan.sizings if page != base for point in front
        if _hits_as_much(plan, base, page, point.pair)
    ]  # fmt: skip
    _run(plan, run, points, "page sizes")
    rest = plan.would_run - len(plan.figures) - len(plan.failed) - sum(plan.skipped.values())
    _skip(plan, "another page size that hits less, or off the front", rest)


def _everything(plan: Plan, pairs: Sequence[Pair]) -> Iterator[Point]:
    """All combinations; without an L2 all policies are one."""
    for page in plan.sizings:
        for pair in pairs:
            policies = plan.wishes.policies if pair.l2_bytes else plan.wishes.policies[:1]
            yield from (Point(page, policy, pair) for policy in policies)


def _hits_as_much(plan: Plan, base: int, page: int, pair: Pair) -> bool:
    """Whether a page size hits no less than the base does, by the curves. Where pages have places,
    copies of small ones take longer, too, so that every size is tried.
    """
    if plan.base.engine.page_ids == "named":
        return True
    here, there = plan.sizings[base], plan.sizings[page]
    margin = plan.wishes.tolerance * here.asked_tokens
    return (
        there.fast_tokens(pair) >= here.fast_tokens(pair) - margin
        and there.all_tokens(pair) >= here.all_tokens(pair) - margin
    )


def _run(plan: Plan, run: Runner, points: Iterable[Point], what: str) -> None:
    wanted = [each for each in points if each not in plan.figures and each not in plan.failed]
    if not wanted:
        return
    jobs = [
        job_of(number, plan.scenario_of(point), own=owned(plan.wishes.own(point.policy), "timed"))
        for number, point in enumerate(wanted)
    ]
    found: dict[int, Done] = {}
    results = run(jobs, what)
    try:
        with closing(results):
            for done in results:
                found[done.number] = done
    finally:  # what is done counts, also where Ctrl-C ends it
        for number, point in enumerate(wanted):
            done = found.get(number)
            if done is not None and done.error:
                plan.failed[point] = done.error
            elif done is not None:
                plan.figures[point] = done.figures


def _skip(plan: Plan, reason: str, count: int) -> None:
    if count > 0:
        plan.skipped[reason] = plan.skipped.get(reason, 0) + count
