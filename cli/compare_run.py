"""What `hicache compare` does with its arguments. Thin: it parses, calls, writes and prints."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hicache.errors import InputError
from scenario.load import parse_assignments
from sim.compare import Comparison, Options, compare
from sim.compare_files import check_folder, write_comparison
from sim.compare_variants import Study, study_of_file, variant_of, variants_of_key
from sim.own_policy import EVICTION, RESTORE
from traces.progress import ProgressBar
from traces.reader import short_name
from traces.source import Progress

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(slots=True)
class CompareArguments:
    """The command's arguments as given; texts are not looked at yet."""

    traces: list[str]
    variants: list[str]
    policies: list[str]
    evictions: list[str]
    file: str | None
    scenario: str | None
    model: str | None
    profile: str | None
    page_size: int | None
    l1: str | None
    l2: str | None
    l3: str | None
    speed: float | None
    untimed: bool
    assignments: list[str]
    out: str | None
    plots: bool
    timeline: bool
    resamples: int
    seed: int
    quiet: bool


def run_compare(given: CompareArguments) -> int:
    """Compare, write the folder, print. Returns 0. Raises HiCacheError subclasses for what cannot
    be, KeyboardInterrupt on Ctrl-C; nothing is written then.
    """
    study = study_of(given)
    folder = given.out or default_folder(study)
    check_folder(folder)
    options = Options(given.resamples, given.seed, given.timeline)
    with _Bars() as bars:
        found = compare(study, options, progress=bars.next)
    figures = comparison_figures(found) if given.plots else None
    place = os.path.relpath(write_comparison(folder, found, figures))
    if given.quiet:
        for each in found.contrasts:
            print(each.verdict)
        for leg in found.legs:
            for warning in leg.outcome.summary["warnings"]:  # pyright: ignore[reportGeneralTypeIssues]
                print(f"warning: {leg.variant.name}: {warning}", file=sys.stderr)
        print(place)
        return 0
    from cli.compare_table import comparison_text

    sys.stdout.write(comparison_text(found))
    print(f"comparison: {place}")
    print(f"as a page: hicache report {place}")
    return 0


def study_of(given: CompareArguments) -> Study:
    """The study that the arguments describe; those beside a file add to it. Raises InputError."""
    study = study_of_file(given.file) if given.file else Study((), ())
    variants = [*study.variants, *map(variant_of, given.variants)]
    variants += variants_of_key(RESTORE, given.policies)
    variants += variants_of_key(EVICTION, given.evictions)
    common: dict[str, object] = {**study.common, **parse_assignments(given.assignments)}
    flags: dict[str, Any] = {
        "model.name": given.model,
        "machine.profile": given.profile,
        "tiers.page_size_tokens": given.page_size,
        "tiers.l1": given.l1,
        "tiers.l2": given.l2,
        "tiers.l3": given.l3,
        "trace.speed": given.speed,
        "mode": "untimed" if given.untimed else None,
    }
    common |= {key: value for key, value in flags.items() if value is not None}
    if "trace.path" in common:
        raise InputError("--set trace.path: traces are named without an option, as TRACE...")
    return replace(
        study,
        traces=(*study.traces, *given.traces),
        variants=tuple(variants),
        scenario=given.scenario or study.scenario,
        common=common,
    )


def default_folder(study: Study) -> str:
    """Where a comparison goes if nobody says."""
    name = short_name(study.traces[0]) if study.traces else "nothing"
    return os.path.join("results", f"compare-{name}")


def comparison_figures(found: Comparison) -> dict[str, Figure]:
    """All pictures of a comparison by the name of their file."""
    from pandas import DataFrame

    from report.plots import devices
    from report.plots import requests as plots

    figures: dict[str, Figure] = {}
    count = len(found.study.variants)
    for place, trace in enumerate(found.names):
        end = f"-{trace}" if len(found.names) > 1 else ""
        legs = found.legs[place * count : (place + 1) * count]
        rows = {leg.variant.name: leg.rows for leg in legs}
        rates: Any = legs[0].outcome.summary["hit_rates"]
        figures[f"tokens{end}"] = plots.tokens_by_source(rows, rates["all"]["tokens"]["ceiling"])
        if found.timed:
            figures[f"ttft{end}"] = plots.ttft_distribution(rows)
            figures[f"ttft_by_prompt{end}"] = plots.ttft_by_prompt(rows)
        for leg in legs:
            name = leg.variant.name
            if not found.timed:
                continue
            figures[f"sources{end}-{name}"] = plots.sources_over_time(leg.rows, name)
            figures[f"restores{end}-{name}"] = plots.restores_over_time(leg.rows, name)
            figures[f"slowest{end}-{name}"] = plots.request_timeline(leg.rows)
            text = leg.outcome.extras.get("timeline.json")
            if text is not None:
                busy = devices.utilisation(devices.operations_of(text), name)
                figures[f"busy{end}-{name}"] = busy
                states = devices.states_of(text)
                figures[f"waiting{end}-{name}"] = devices.waiting_over_time(states, name)
                if (states["counter"] == "prefetch_fulfilled_tokens").any():
                    drawn = devices.prefetches_over_time(states, name)
                    figures[f"prefetches{end}-{name}"] = drawn
    for each in found.document()["comparisons"]:
        end = f"-{each['trace']}" if len(found.names) > 1 else ""
        figures[f"changes{end}-{each['other']}".replace(" ", "_")] = plots.changes_by_prompt(
            DataFrame(each["by_prompt"]), each["base"], each["other"]
        )
    return figures


class _Bars:
    """A progress bar for each replay, one after the other."""

    def __init__(self) -> None:
        self._bar: ProgressBar | None = None

    def __enter__(self) -> _Bars:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def next(self, name: str) -> Progress:
        """End the bar before and begin the one of replay `name`."""
        self._end()
        self._bar = ProgressBar(name)
        shown: Callable[[int, int | None], None] = self._bar.__enter__()
        return shown

    def _end(self) -> None:
        if self._bar is not None:
            self._bar.__exit__(None, None, None)
            self._bar = None
