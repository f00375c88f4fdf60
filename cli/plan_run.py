"""What `hicache plan` does with its arguments. Thin: it parses, calls, writes and prints."""

from __future__ import annotations

import math
import sys
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from cli.cells_bar import CellsBar
from cli.plan_table import print_plan
from cli.targets import check_apart, check_picture, check_target
from cli.writing import write_document, write_picture
from hicache.errors import InputError
from scenario.load import parse_assignments
from scenario.profile import Profile
from scenario.records import dump_toml
from scenario.sizes import Size
from sim.own_policy import head_lines
from sim.plan import Plan, Wishes, prepare_plan
from sim.plan_document import document_of
from sim.plan_search import Runner, search
from sim.plan_sizes import GIB, Limits, size_of, size_or_multiple
from sim.sweep_cell import Done, Job
from sim.sweep_pool import Lost, cores, end_workers, run_here
from traces.outfile import write_lines

INTERRUPTED = 130
GOAL_NOT_MET = 1
_SCENARIO_HEAD = "# made by hicache plan\n"


@dataclass(slots=True)
class PlanArguments:
    """The command's arguments as given; texts are not looked at yet."""

    trace: str | None
    scenario: str | None = None
    model: str | None = None
    profile: str | None = None
    l1: str | None = None
    ttft_p99: float | None = None
    budget: str | None = None
    price_l2: float | None = None
    price_l3: float | None = None
    l2: str | None = None
    l3: str | None = None
    page_size: str | None = None
    policy: str = "cost,always"
    ranks: int | None = None
    host_fraction: float = 0.9
    assignments: Sequence[str] = ()
    out: str = "plan.json"
    plot: str | None = None
    save_scenario: str | None = None
    exhaustive: bool = False
    jobs: int | None = None
    quiet: bool = False
    force: bool = False


def run_plan(given: PlanArguments) -> int:
    """Search, write and print. Returns the exit code: 0; 1 where no point meets the goal; 130 where
    Ctrl-C ended it, with what was found until then. Raises InputError for what cannot be.
    """
    priced = _check(given)
    wishes = _wishes(given)
    plan = prepare_plan(wishes, lambda profile: _limits(given, profile))
    try:
        search(plan, _runner(given), priced)
    finally:
        end_workers()
    document = document_of(plan, priced)
    _write(given, plan, document)
    if not given.quiet:
        print_plan(document)
    for name, path in (("plan", given.out), ("plot", given.plot)):
        if path:
            print(f"{name}: {path}")
    if given.save_scenario and document["chosen"] is not None:
        print(f"scenario: {given.save_scenario}")
    if plan.interrupted:
        print("interrupted: the plan is of what was simulated until then", file=sys.stderr)
        return INTERRUPTED
    return GOAL_NOT_MET if document["chosen"] is None else 0


def _check(given: PlanArguments) -> str:
    """Raises InputError for what cannot be; returns the unit of cost."""
    for name, value in (("--price-l2", given.price_l2), ("--price-l3", given.price_l3)):
        if value is not None and not 0 <= value < math.inf:
            raise InputError(f"{name} is {value:g}: it must be a number, 0 or more")
    if (given.price_l2 is None) != (given.price_l3 is None):
        missing = "--price-l2" if given.price_l2 is None else "--price-l3"
        raise InputError(f"{missing} is missing: a price of one tier needs that of the other")
    if given.price_l2 == 0 and given.price_l3 == 0:
        raise InputError("--price-l2 and --price-l3 are both 0: then everything costs nothing")
    if given.ttft_p99 is not None and not 0 < given.ttft_p99 < math.inf:
        raise InputError(f"--ttft-p99 is {given.ttft_p99:g}: it must be a time above 0, in ms")
    if given.ranks is not None and given.ranks < 1:
        raise InputError(f"--ranks is {given.ranks}: it must be at least 1")
    if not 0 < given.host_fraction <= 1:
        raise InputError(
            f"--host-fraction is {given.host_fraction:g}: it must lie above 0 and be at most 1"
        )
    if given.jobs is not None and given.jobs < 1:
        raise InputError(f"--jobs is {given.jobs}: it must be at least 1")
    check_picture("--plot", given.plot)
    files = {"--out": given.out, "--plot": given.plot, "--save-scenario": given.save_scenario}
    check_apart(files)
    for path in files.values():
        if path is not None:
            check_target(path, "plan", replaces=given.force, trace=given.trace)
    return "GiB" if given.price_l2 is None else "money"


def _wishes(given: PlanArguments) -> Wishes:
    options: dict[str, object] = parse_assignments(given.assignments)
    for key in ("tiers.l2", "tiers.l3", "tiers.page_size_tokens", "restore.policy"):
        if key in options:
            flag = {"tiers.page_size_tokens": "--page-size", "restore.policy": "--policy"}
            raise InputError(
                f"--set {key}: is what a plan searches; name its values with "
                f"{flag.get(key, '--' + key[-2:])}"
            )
    named = {
        "trace.path": given.trace, "model.name": given.model, "machine.profile": given.profile,
        "tiers.l1": given.l1,
    }  # fmt: skip
    options |= {key: value for key, value in named.items() if value is not None}
    return Wishes(
        given.scenario,
        options,
        list(_numbers("--page-size", given.page_size)),
        _policies(given.policy),
        _sizes("--l2", given.l2),
        _sizes("--l3", given.l3),
        given.ttft_p99,
        exhaustive=given.exhaustive,
    )


def _numbers(option: str, text: str | None) -> Iterator[int]:
    for each in _listed(option, text):
        if not each.isdecimal() or not int(each):
            raise InputError(f"{option} is {each}: it must be whole numbers of tokens, as 16,64")
        yield int(each)


def _policies(text: str) -> list[str]:
    return _listed("--policy", text)


def _sizes(option: str, text: str | None) -> list[int | Size] | None:
    if text is None:
        return None
    return [size_or_multiple(each, option) for each in _listed(option, text)]


def _listed(option: str, text: str | None) -> list[str]:
    if text is None:
        return []
    listed = [each.strip() for each in text.split(",")]
    if not all(listed):
        raise InputError(f"{option} is {text!r}: write values with commas between them")
    twice = next((each for place, each in enumerate(listed) if each in listed[:place]), None)
    if twice is not None:
        raise InputError(f"{option} is {text}: {twice} is there twice")
    return listed


def _limits(given: PlanArguments, profile: Profile) -> Limits:
    memory = profile.memory
    return Limits(
        profile.name,
        memory.host_bytes.value,
        given.host_fraction,
        None if memory.storage_bytes is None else memory.storage_bytes.value,
        given.ranks or 0,
        1.0 if given.price_l2 is None else given.price_l2,
        1.0 if given.price_l3 is None else given.price_l3,
        _budget(given),
    )


def _budget(given: PlanArguments) -> float | None:
    text = given.budget
    if text is None:
        return None
    if given.price_l2 is None:
        return size_of(text, "--budget") / GIB
    try:
        budget = float(text)
    except ValueError:
        budget = -1
    if not 0 <= budget < math.inf:
        raise InputError(f"--budget is {text}: with prices it is an amount of money, a number")
    return budget


def _runner(given: PlanArguments) -> Runner:
    workers = given.jobs or cores()

    def run(jobs: Sequence[Job], what: str) -> Generator[Done]:
        results = run_here(jobs, workers, Lost())  # before the bar, which has a thread
        with CellsBar(f"simulating {what}", len(jobs)) as bar:
            for done in results:
                yield done
                bar.advance()

    return run


def _write(given: PlanArguments, plan: Plan, document: dict[str, Any]) -> None:
    write_document(document, given.out, _laid_out)
    chosen, _ = plan.chosen()
    if given.save_scenario is not None and chosen is not None:
        head = _SCENARIO_HEAD + head_lines(plan.wishes.own(chosen.policy))
        text = head + dump_toml(plan.scenario_of(chosen))
        write_lines([text.encode()], given.save_scenario)
    if given.plot is not None:
        from sim.plan_plot import save_plan

        write_picture(lambda path: save_plan(document, path), given.plot)


def _laid_out(value: Any) -> bytes:
    """A list of tables a line each, so that the file can be looked at."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return b"[\n" + b",\n".join(map(msgspec.json.encode, value)) + b"\n]"
    return msgspec.json.encode(value)
