"""What a plan is asked and what it finds: points with their figures, the front, knee and choice.

A point is a page size, a policy and a pair of sizes of L2 and L3. Every number of one is what a
replay of its scenario gives: nothing is interpolated. The front is of cost and the 99th percentile
of TTFT. It refuses traces without ids, whose hits nobody knows, and what does not fit the machine.
Which points are simulated decides `sim.plan_search`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from hicache.errors import InputError
from hicache.options import EngineOptions
from scenario.geometry import ModelGeometry, load_geometry
from scenario.load import load_scenario
from scenario.profile import Profile, load_profile
from scenario.records import Scenario
from scenario.resolve import resolve
from scenario.sizes import Size
from sim.curve_trace import ExactReuse, TraceUses
from sim.own_policy import RESTORE, check_own, without_own
from sim.plan_sizes import Ladder, Limits, Pair, Sizing, size_text
from sim.sweep import check_cell
from traces.reader import Trace, open_trace

TTFT = "ttft_ms.p99"
PAGE_SIZES = (16, 64, 256)
POLICIES = ("cost", "always")
TOLERANCE = 0.001


@dataclass(frozen=True, slots=True)
class Wishes:
    """What is asked for, besides the scenario that everything else is taken from.

    `page_sizes` empty: those of `PAGE_SIZES` that suit the trace. `l2`, `l3`: sizes in bytes, or
    multiples of L1, in place of the curve's; None: the curve's. `ttft_p99_ms`: the goal; None:
    none.
    """

    scenario: str | None
    options: Mapping[str, object]
    page_sizes: Sequence[int] = ()
    policies: Sequence[str] = POLICIES
    l2: Sequence[int | Size] | None = None
    l3: Sequence[int | Size] | None = None
    ttft_p99_ms: float | None = None
    tolerance: float = TOLERANCE
    exhaustive: bool = False

    def load(self, options: Mapping[str, object]) -> Scenario:
        """The scenario of the wishes under `options`, with stand-ins for classes of the user's."""
        return load_scenario(self.scenario, without_own({**self.options, **options})[0])

    def own(self, policy: str) -> dict[str, str]:
        """The classes of the user's that take part under `policy`, by key."""
        return without_own({**self.options, RESTORE: policy})[1]


class Point(NamedTuple):
    """One way to set the machine up."""

    page_size_tokens: int
    policy: str
    pair: Pair


@dataclass(slots=True)
class Plan:
    """What was found. `figures` are those of each point that was simulated, as in a sweep."""

    wishes: Wishes
    base: Scenario
    trace: Trace
    profile: Profile
    geometry: ModelGeometry
    limits: Limits
    # In bytes, of one rank: what `wishes` names in place of the curve's sizes.
    given: Mapping[str, Sequence[int] | None]
    sizings: dict[int, Sizing] = field(default_factory=dict)
    reuses: dict[int, tuple[TraceUses, ExactReuse]] = field(default_factory=dict)
    ladder: Ladder = field(default_factory=Ladder)
    figures: dict[Point, Mapping[str, Any]] = field(default_factory=dict)
    failed: dict[Point, str] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    would_run: int = 0
    interrupted: bool = False

    def scenario_of(self, point: Point) -> Scenario:
        """The whole scenario of a point."""
        return self.wishes.load(options_of(point))

    def cost(self, point: Point) -> float:
        """Of L2 and L3 of a node, in the unit of the prices."""
        return self.limits.cost(point.pair)

    def ttft_ms(self, point: Point) -> float:
        """The 99th percentile of TTFT."""
        return self.figures[point][TTFT]

    def front(self) -> list[Point]:
        """Points that no other beats in cost and TTFT, the cheapest first."""
        best = float("inf")
        found: list[Point] = []
        ranked = sorted(self.figures, key=lambda p: (self.cost(p), self.ttft_ms(p), _order(p)))
        for point in ranked:
            if self.ttft_ms(point) < best:
                best = self.ttft_ms(point)
                found.append(point)
        return found

    def knee(self) -> Point | None:
        """The point of the front farthest below the line between its ends, both axes scaled to 1;
        None where the front has no point between its ends below it.
        """
        front = self.front()
        if len(front) < 3:
            return None
        cheap, fast = front[0], front[-1]
        wide, high = self.cost(fast) - self.cost(cheap), self.ttft_ms(cheap) - self.ttft_ms(fast)

        def below(point: Point) -> float:
            along = (self.cost(point) - self.cost(cheap)) / wide
            return 1 - along - (self.ttft_ms(point) - self.ttft_ms(fast)) / high

        best = max(front[1:-1], key=below)
        return best if below(best) > 0 else None

    def chosen(self) -> tuple[Point | None, str]:
        """The point to take, and why: the cheapest that meets the goal; without one, the knee."""
        front, goal = self.front(), self.wishes.ttft_p99_ms
        if not front:
            return None, "nothing was simulated"
        if goal is not None:
            meeting = [point for point in front if self.ttft_ms(point) <= goal]
            if meeting:
                return meeting[0], f"the cheapest with a TTFT p99 of no more than {goal:,g} ms"
            return None, (
                f"none has a TTFT p99 of {goal:,g} ms; the nearest has "
                f"{self.ttft_ms(front[-1]):,.0f} ms"
            )
        knee = self.knee()
        if knee is not None:
            return knee, "the knee: beyond it, cost buys less"
        return front[-1], "the shortest TTFT p99; the front has no knee"


def options_of(point: Point) -> dict[str, object]:
    """What a point sets in a scenario."""
    return {
        "tiers.page_size_tokens": point.page_size_tokens,
        "tiers.l2": size_text(point.pair.l2_bytes),
        "tiers.l3": size_text(point.pair.l3_bytes),
        RESTORE: point.policy,
    }


def prepare_plan(wishes: Wishes, limits: Callable[[Profile], Limits]) -> Plan:
    """Open what is named. `limits` with `ranks` 0: a node is one server. Raises InputError."""
    bare: dict[str, object] = {"tiers.l2": "0", "tiers.l3": "0"}
    if wishes.page_sizes:
        bare["tiers.page_size_tokens"] = wishes.page_sizes[0]
    base = wishes.load(bare)
    check_cell(base)
    if base.mode != "timed":
        raise InputError("mode is untimed: a plan is about TTFT; leave it timed")
    if base.cache.write_policy == "none":
        raise InputError('cache.write_policy is "none": nothing is ever written to L2 or L3')
    profile, geometry = load_profile(base.machine.profile), load_geometry(base.model.name)
    options = _check_fits(base, profile, geometry)
    l1_bytes = options.device_pages * options.page_bytes
    for policy in wishes.policies:
        wishes.load({**bare, "restore.policy": policy})
        check_own(wishes.own(policy), base.mode)
    trace = open_trace(
        base.trace.path, block_tokens=base.trace.block_tokens, speed=base.trace.speed,
        tokenizer=base.trace.tokenizer, on_error=base.trace.on_error,
        prefixes=base.trace.prefixes(base.seed),
    )  # fmt: skip
    if not trace.layout.has_ids and not base.trace.prefix_share:
        raise InputError(
            f"{trace.shown}: the trace has lengths only, so nobody knows what it hits; "
            "--set trace.prefix_share=0.5 makes up what prompts share"
        )
    return Plan(
        wishes, base, trace, profile, geometry.with_kv_dtype(base.model.kv_dtype),
        _of_node(limits(profile), options),
        {"l2": _in_bytes(wishes.l2, l1_bytes), "l3": _in_bytes(wishes.l3, l1_bytes)},
    )  # fmt: skip


def _check_fits(base: Scenario, profile: Profile, geometry: ModelGeometry) -> EngineOptions:
    """A machine that cannot hold model and L1 is refused, with the numbers."""
    options, warnings = resolve(base, profile, geometry)
    for warning in warnings:
        if warning.startswith(("tiers.l1 is", "model.name is")):
            raise InputError(warning)
    return options


def _of_node(limits: Limits, options: EngineOptions) -> Limits:
    """The limits of a node with so many GPUs, which are whole servers."""
    ranks = limits.ranks or options.ranks
    if ranks % options.ranks:
        raise InputError(
            f"--ranks is {ranks}: a server has {options.ranks} (ranks.tp); it must be a multiple "
            "of that"
        )
    servers = ranks // options.ranks
    return replace(limits, ranks=ranks, l3_ranks=servers * options.writing_ranks)


def _in_bytes(sizes: Sequence[int | Size] | None, l1_bytes: int) -> list[int] | None:
    if sizes is None:
        return None
    return [
        each if isinstance(each, int) else each.digits * l1_bytes // 10**each.decimals
        for each in sizes
    ]


def _order(point: Point) -> tuple[object, ...]:
    return point.policy != POLICIES[0], -point.page_size_tokens, point
