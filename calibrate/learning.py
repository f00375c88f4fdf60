"""What the cost model learned in a run: its belief against the profile's truth, decision by
decision, and what it lost against a policy that knows the truth.

    belief    lines over sizes, from the completions that the run saw           hicache.cost_model
    truth     what the profile says of these pages on an idle machine           Truth
    regret    what the choice loses against the best one, by the truth

Truth and belief live apart: no option of the engine leads here. `OraclePolicy` is handed to an
engine that is already made, and its truth is of an idle machine: it knows no queue and no future.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING, Any, NamedTuple

from simpy import Environment

from calibrate.validate.runs import Asked, Played, asked_about, by_request, play
from calibrate.validate.validation import machine_options
from hicache.engine import Engine
from hicache.errors import InputError
from hicache.kernel import Pending
from hicache.operations import Chunk, Completion, Copy, Direction, Prefill
from hicache.options import EngineOptions
from hicache.restore_policy import FROM_HOST, FROM_STORAGE, Choice
from hicache.tree import Match
from report.plots.belief import belief_against_truth
from scenario.geometry import load_geometry
from scenario.profile import Profile, load_profile
from scenario.records import Scenario
from scenario.resolve import resolve
from sim.lanes import SimMachine

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

# The belief counts as settled where of every so many choices that follow at most one is wrong.
WINDOW = 20


class Hit(NamedTuple):
    """What a policy sees of a request: hits in pages by tier, and the prompt."""

    device: int
    host: int
    storage: int
    prompt_tokens: int


class Truth:
    """What restoring and computing take on an idle machine, from its profile. Times in ns."""

    def __init__(self, scenario: Scenario, profile: Profile) -> None:
        geometry = load_geometry(scenario.model.name)
        options, _ = resolve(scenario, profile, geometry)
        self._profile = profile
        self._geometry = geometry.with_kv_dtype(scenario.model.kv_dtype)
        self._scenario = scenario
        self._options: EngineOptions = options
        self._steps = self._machine(Environment(0)).steps
        self._copies: dict[tuple[Direction, int], int] = {}
        self._prefills: dict[tuple[int, int], int] = {}

    @property
    def page_bytes(self) -> int:
        """Bytes of one page."""
        return self._options.page_bytes

    @property
    def has_storage(self) -> bool:
        """Whether there is an L3."""
        return self._options.storage_pages > 0

    def gain_ns(self, hit: Hit, goal: int) -> int:
        """What restoring up to page `goal` saves, against the L1 hit alone; negative: it loses.

        From L2 as far as L2 goes, else from L3: all that is not in L1 is read then, as the cost
        model reckons.
        """
        if goal <= hit.device:
            return 0
        page = self._options.page_size_tokens
        way = FROM_HOST if goal <= hit.host else FROM_STORAGE
        pages = goal - hit.device
        saved_ns = self.prefill_ns(hit, hit.device * page) - self.prefill_ns(hit, goal * page)
        return saved_ns - sum(self.copy_ns(direction, pages) for direction in way)

    def best_goal(self, hit: Hit) -> int:
        """The goal that saves most; the L1 hit where none saves anything."""
        goals = (hit.device, hit.host, hit.storage)
        return max(goals, key=lambda goal: (self.gain_ns(hit, goal), -goal))

    def prefill_ns(self, hit: Hit, past_tokens: int) -> int:
        """Computing what of the prompt lies behind `past_tokens`, in the scheduler's chunks."""
        past = min(past_tokens, hit.prompt_tokens - 1)
        key = (hit.prompt_tokens, past)
        if key not in self._prefills:
            total = 0
            while past < hit.prompt_tokens:
                new = min(self._options.scheduler.chunk_tokens, hit.prompt_tokens - past)
                total += self._steps.prefill_ns(Prefill((Chunk(0, new, past),), new))
                past += new
            self._prefills[key] = total
        return self._prefills[key]

    def copy_ns(self, direction: Direction, pages: int) -> int:
        """One copy from its submission to its end, nothing else under way."""
        key = (direction, pages)
        if key not in self._copies:
            env = Environment(0)
            size_bytes = pages * self._options.page_bytes
            pending = self._machine(env).lanes().submit(Copy(direction, pages, size_bytes, 1))
            env.run()
            assert isinstance(pending, Pending)
            done: Completion = pending.value
            self._copies[key] = done.finished_ns - done.submitted_ns
        return self._copies[key]

    def _machine(self, env: Environment) -> SimMachine:
        given = machine_options(self._scenario)
        return SimMachine(env, self._profile, self._geometry, **given)


class OraclePolicy:
    """Restores what the truth says saves most (`hicache.restore_policy.Policy`)."""

    def __init__(self, engine: Engine, truth: Truth) -> None:
        self._engine = engine
        self._truth = truth

    def __call__(self, hits: Match) -> Choice:
        prompt = asked_about(self._engine).prompt_tokens
        hit = Hit(hits.device, hits.host, hits.storage, prompt)
        goal = self._truth.best_goal(hit)
        return Choice(goal, "truth" if goal > hits.device else "recompute_cheaper")


@dataclass(slots=True)
class Learning:
    """What was found. `table` has a row for each decision, in order; times in ms."""

    name: str
    profile: Profile
    run: Played
    oracle: Played
    cost: Played
    table: DataFrame
    settled_at: int | None

    def summary(self) -> dict[str, Any]:
        """What learning.json holds."""
        right: list[bool] = self.table["right"].tolist()
        regrets: list[float] = self.table["regret_ms"].tolist()
        count, at = len(right), self.settled_at
        quarters = [right[count * part // 4 : count * (part + 1) // 4] for part in range(4)]
        cost_ms, oracle_ms = (
            float(run.summary["ttft_ms"]["mean"] or 0.0) for run in (self.cost, self.oracle)
        )
        return {
            "name": self.name,
            "profile": self.profile.name,
            "decisions": count,
            "right_choices": sum(right),
            "right_share_by_quarter": [
                sum(each) / len(each) if each else None for each in quarters
            ],
            "settled_at_decision": at,
            "samples_until_settled": None
            if at is None
            else {
                name: self.table[f"{name}_samples"].tolist()[at]
                for name in ("prefill", "h2d", "s2h")
            },
            "regret_of_decisions_ms": sum(regrets),
            "probes": self.table["reason"].tolist().count("probe"),
            "ttft_mean_ms": {
                "run": self.run.summary["ttft_ms"]["mean"],
                "cost_simulated": cost_ms,
                "truth_known_simulated": oracle_ms,
            },
            "regret_ttft_mean_ms": cost_ms - oracle_ms,
            "regret_ttft_mean_percent": 100 * (cost_ms - oracle_ms) / max(oracle_ms, 1e-9),
            "belief_over_truth_at_end": _at_end(self.table),
        }


def learn(scenario: Scenario, name: str, run: Played | None = None) -> Learning:
    """Look at what `run` learned (a run on hardware), or else a simulation of `scenario`.

    The truth is `scenario`'s profile. Regret in TTFT comes from two simulations of it, one with
    the cost policy and one with the truth known. Raises InputError for a policy that asks nothing.
    """
    if scenario.restore.policy != "cost":
        raise InputError(
            f"restore.policy is {scenario.restore.policy}: it asks no cost model; "
            "--set restore.policy=cost"
        )
    if scenario.mode == "untimed":
        raise InputError("mode is untimed: nothing takes time, so there is nothing to learn")
    profile = load_profile(scenario.machine.profile)
    truth = Truth(scenario, profile)
    cost = play(scenario, "cost")
    oracle = play(
        scenario, "truth known", policy_of=lambda engine, _cost: OraclePolicy(engine, truth)
    )
    run = run or cost
    page = scenario.tiers.page_size_tokens
    table = decisions(run.asked, by_request(run.columns, "prompt_tokens"), truth, page)
    return Learning(name, profile, run, oracle, cost, table, settled(table["right"].tolist()))


def decisions(
    asked: Sequence[Asked], prompts: dict[int, int], truth: Truth, page_size_tokens: int
) -> DataFrame:
    """A row for each time that the policy was asked: what it believed, what is true of the same
    pages, what it chose and what would have been best. `right` is said of what it believed to be
    best, `regret_ms` of what was done: a probe costs, and may be right all the same.
    """
    from pandas import DataFrame

    rows: list[dict[str, Any]] = []
    for each in asked:
        hit = Hit(each.device, each.host, each.storage, prompts[each.request])
        best = truth.best_goal(hit)
        regret_ns = truth.gain_ns(hit, best) - truth.gain_ns(hit, each.goal)
        # A probe is what the belief speaks against: its choice was to compute.
        chosen = each.device if each.reason == "probe" else each.goal
        deepest = max(each.host, each.storage)
        pages = deepest - each.device
        size = float(pages * page_size_tokens)
        size_bytes = float(truth.page_bytes * pages)
        prefill, down, read = each.lines
        past = each.device * page_size_tokens
        computed_ns = truth.prefill_ns(hit, past) - truth.prefill_ns(
            hit, deepest * page_size_tokens
        )
        row: dict[str, Any] = {
            "at_s": each.at_ns / 1e9,
            "request": each.request,
            "tokens": int(size),
            "from": "L3" if each.storage > each.host else "L2",
            "recompute_believed_ms": each.recompute_s * 1e3,
            "recompute_true_ms": computed_ns / 1e6,
            "h2d_believed_ms": (down[0] + down[1] * size_bytes) * 1e3,
            "h2d_true_ms": truth.copy_ns("h2d", pages) / 1e6,
            "s2h_believed_ms": (read[0] + read[1] * size_bytes) * 1e3,
            "s2h_true_ms": truth.copy_ns("s2h", pages) / 1e6 if truth.has_storage else None,
            "reason": each.reason,
            "goal": each.goal,
            "best_goal": best,
            "right": truth.gain_ns(hit, chosen) >= truth.gain_ns(hit, best),
            "regret_ms": regret_ns / 1e6,
        }
        for name, line in zip(("prefill", "h2d", "s2h"), (prefill, down, read), strict=True):
            row[f"{name}_samples"] = line[2]
        rows.append(row)
    return DataFrame(rows, columns=_COLUMNS)


_COLUMNS = [
    "at_s", "request", "tokens", "from", "recompute_believed_ms", "recompute_true_ms",
    "h2d_believed_ms", "h2d_true_ms", "s2h_believed_ms", "s2h_true_ms", "reason", "goal",
    "best_goal", "right", "regret_ms", "prefill_samples", "h2d_samples", "s2h_samples",
]  # fmt: skip


def settled(right: Sequence[bool]) -> int | None:
    """The first right decision from which on at most one in 20 consecutive choices is wrong; None
    if there is none.
    """
    most = 1 if len(right) >= WINDOW else 0
    first: int | None = None
    for place in range(len(right) - 1, -1, -1):
        if right[place : place + WINDOW].count(False) > most:
            break
        if right[place]:
            first = place
    return first


def draw(found: Learning) -> Figure:
    """Belief over truth at each decision, and what the choices lost, added up."""
    title = f"{found.name}: belief against {found.profile.name}"
    return belief_against_truth(found.table, title, found.settled_at)


def _at_end(table: DataFrame) -> dict[str, float | None]:
    """The middle one of the last ten."""
    ratios: dict[str, float | None] = {}
    for name in ("recompute", "h2d", "s2h"):
        ratio = (table[f"{name}_believed_ms"] / table[f"{name}_true_ms"]).tolist()
        known = sorted(each for each in ratio[-10:] if not isnan(each))
        ratios[name] = known[len(known) // 2] if known else None
    return ratios
