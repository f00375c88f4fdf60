"""A comparison: every variant replays every trace, and its requests are paired with the first's.

    Study --- sim.replay ---> legs, one replay each --- compare_pairs, compare_stats ---> contrasts

Everything follows from the study, the traces and a seed: the same study gives the same bytes.
Refuses to print, draw or write.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hicache import __version__
from hicache.errors import InputError
from report.outcome import Outcome
from scenario.records import Scenario
from sim import own_policy
from sim.compare_pairs import (
    by_part,
    by_prompt,
    by_source,
    counts,
    join_traces,
    judge_changes,
    most_changed,
    pair,
    tokens_by_source,
)
from sim.compare_stats import CONFIDENCE, METRICS, Difference, differences
from sim.compare_variants import Study, Variant, check_study
from sim.compare_verdict import judgement, reason, verdict
from sim.replay import prepare
from traces.reader import short_name
from traces.source import Progress

# Of pandas, which has no types that a checker could use.
DataFrame = Any

SCHEMA = "hicache compare 1"
RESAMPLES = 2000
ALL = "all traces"


class Options(NamedTuple):
    """How intervals are made, and whether runs are kept for Perfetto."""

    resamples: int = RESAMPLES
    seed: int = 0
    timeline: bool = False


@dataclass(slots=True)
class Leg:
    """One variant's replay of one trace; `rows` is requests.parquet as a table."""

    variant: Variant
    trace: str
    scenario: Scenario
    outcome: Outcome
    rows: DataFrame


@dataclass(slots=True)
class Contrast:
    """One variant against the first, over one trace or all of them."""

    base: str
    other: str
    trace: str
    pairs: DataFrame
    differences: list[Difference]
    unit: str
    units: int
    verdict: str
    reason: str


@dataclass(slots=True)
class Comparison:
    """What was found. `names`: what each trace is called."""

    study: Study
    options: Options
    names: list[str]
    timed: bool
    legs: list[Leg]
    contrasts: list[Contrast] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """What compare.json holds."""
        return {
            "schema": SCHEMA,
            "version": __version__,
            "mode": "timed" if self.timed else "untimed",
            "traces": [
                {
                    "name": name,
                    "sha256": leg.outcome.summary["trace"]["sha256"],  # pyright: ignore[reportIndexIssue]
                    "requests": len(leg.rows),
                }
                for name, leg in zip(
                    self.names, self.legs[:: len(self.study.variants)], strict=True
                )
            ],
            "variants": [_variant(each) for each in self.study.variants],
            "bootstrap": {
                "resamples": self.options.resamples,
                "seed": self.options.seed,
                "confidence": CONFIDENCE,
            },
            "metrics": [
                {
                    "key": each.key,
                    "title": each.title,
                    "unit": each.unit,
                    "better": "higher" if each.better > 0 else "lower",
                }
                for each in METRICS
            ],
            "comparisons": [_contrast(each, timed=self.timed) for each in self.contrasts],
            "runs": [
                {
                    "trace": self.names[place // len(self.study.variants)],
                    "variant": leg.variant.name,
                    "summary": leg.outcome.summary,
                }
                for place, leg in enumerate(self.legs)
            ],
        }


def compare(
    study: Study,
    options: Options | None = None,
    *,
    progress: Callable[[str], Progress | None] | None = None,
) -> Comparison:
    """Run `study` and lay its variants side by side. Raises InputError for what cannot be.

    `progress`: what shows how far a replay has come, given what the replay is called.
    KeyboardInterrupt where Ctrl-C ended a replay: half of one cannot be paired.
    """
    options = options or Options()
    if options.resamples < 100:
        raise InputError(f"--resamples is {options.resamples}: an interval takes 100 or more")
    if options.seed < 0:
        raise InputError(f"--seed is {options.seed}: it must not be negative")
    check_study(study)
    names = trace_names(study.traces)
    legs: list[Leg] = []
    for trace, name in zip(study.traces, names, strict=True):
        for variant in study.variants:
            shown = f"{variant.name}, {name}"
            legs.append(_leg(study, variant, trace, options, progress and progress(shown)))
    timed = legs[0].scenario.mode == "timed"
    found = Comparison(study, options, names, timed, legs)
    each_trace: list[list[DataFrame]] = []
    for place, name in enumerate(names):
        row = legs[place * len(study.variants) : (place + 1) * len(study.variants)]
        each_trace.append(_paired(row, name, timed=timed))
    for place, variant in enumerate(study.variants[1:]):
        parts = [row[place] for row in each_trace]
        groups = [(ALL, join_traces(parts))] if len(parts) > 1 else []
        groups += list(zip(names, parts, strict=True))
        for name, pairs in groups:
            found.contrasts.append(
                _against(study.variants[0].name, variant.name, name, pairs, options, timed=timed)
            )
    return found


def replay_variant(
    study: Study,
    variant: Variant,
    trace: str,
    *,
    timeline: bool = False,
    progress: Progress | None = None,
) -> Outcome:
    """What `variant` makes of `trace`, its own policies in place."""
    run = prepare(study.scenario_of(variant, trace), timeline=timeline, progress=progress)
    for engine in run.instances:
        own_policy.install(engine, variant.own)
    try:
        run.execute()
    except InputError as error:
        raise InputError(f"variant {variant.name}: {error}") from None
    if run.interrupted:
        raise KeyboardInterrupt
    outcome = run.outcome()
    own_policy.note(outcome, variant.own)
    return outcome


def table_of(outcome: Outcome) -> DataFrame:
    """requests.parquet as a table, from what a replay left."""
    import numpy
    import pandas

    # Most columns are buffers of whole numbers: as lists they would take five times the memory.
    columns = {
        name: numpy.array(values) if isinstance(values, array) else list(values)
        for name, values in outcome.columns.items()
    }
    table = pandas.DataFrame(columns)
    for name in ("ttft_ns", "tpot_ns", "e2e_ns", "recorded_tokens", "turn"):
        numbers: Any = pandas.to_numeric(table[name])
        table[name] = numbers.astype("Float64")
    return table


def trace_names(traces: Sequence[str]) -> list[str]:
    """Short names, told apart where two are the same."""
    names: list[str] = []
    for trace in traces:
        name = short_name(trace)
        if name in names:
            name = f"{os.path.basename(os.path.dirname(os.path.abspath(trace)))}-{name}"
        number = 2
        while name in names:
            name, number = f"{short_name(trace)}-{number}", number + 1
        names.append(name)
    return names


def _leg(
    study: Study, variant: Variant, trace: str, options: Options, progress: Progress | None
) -> Leg:
    outcome = replay_variant(study, variant, trace, timeline=options.timeline, progress=progress)
    scenario = study.scenario_of(variant, trace)
    return Leg(variant, trace, scenario, outcome, table_of(outcome))


def _paired(legs: Sequence[Leg], name: str, *, timed: bool) -> list[DataFrame]:
    """Each further leg of a trace paired with its first."""
    made: list[DataFrame] = []
    for leg in legs[1:]:
        pairs = pair(legs[0].rows, leg.rows, name, (legs[0].variant.name, leg.variant.name))
        pairs["change"] = judge_changes(pairs, timed=timed)
        made.append(pairs)
    return made


def _against(
    base: str, other: str, trace: str, pairs: DataFrame, options: Options, *, timed: bool
) -> Contrast:
    found = differences(pairs, timed=timed, resamples=options.resamples, seed=options.seed)
    units, unit = int(pairs["unit"].nunique()), str(pairs.attrs["unit"])
    return Contrast(
        base, other, trace, pairs, found, unit, units,
        verdict(base, other, found, units, unit),
        reason(by_source(pairs, timed=timed), base, other, timed=timed),
    )  # fmt: skip


def _variant(variant: Variant) -> dict[str, Any]:
    options = {key: _shown(value) for key, value in variant.options.items()}
    return {
        "name": variant.name,
        "scenario": variant.scenario and os.path.basename(variant.scenario),
        "options": options | dict(variant.own),
        "own": sorted(variant.own),
    }


def _shown(value: object) -> object:
    return value if isinstance(value, (bool, int, float)) else str(value)


def _contrast(found: Contrast, *, timed: bool) -> dict[str, Any]:
    pairs = found.pairs
    row: dict[str, Any] = {
        "base": found.base,
        "other": found.other,
        "trace": found.trace,
        "verdict": found.verdict,
        "reason": found.reason,
        "requests": len(pairs),
        **counts(pairs),
        "unit": found.unit,
        "units": found.units,
        "differences": {
            each.metric.key: {
                "base": each.base, "other": each.other, "difference": each.value,
                "low": each.low, "high": each.high, "judgement": judgement(each),
            }
            for each in found.differences
        },
        "tokens_by_source": tokens_by_source(pairs),
        "by_prompt": by_prompt(pairs, timed=timed),
        "by_source": by_source(pairs, timed=timed),
    }  # fmt: skip
    if timed:
        row["ttft_parts"] = by_part(pairs)
    row["most_changed"] = most_changed(pairs, timed=timed)
    return row
