"""One cell of a sweep, run in whatever process it is handed to: a scenario in, figures out.

Figures are those of summary.json that a table of many runs is read by, under the names that
`pandas.json_normalize(summary)` gives them, rounded as there. What is wrong with a cell (a request
larger than L1, a row that cannot be read) is text in its result, and other cells go on.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from hicache.errors import HiCacheError, InputError
from scenario.load import load_scenario
from scenario.records import Scenario, values
from scenario.results import summary_text, write_result
from scenario.sizes import Size
from sim.own_policy import OwnClass, install_owned, note
from sim.replay import prepare
from sim.sweep_trace import KeptTraces

Figures = Mapping[str, Any]

# Of the summary: whole tables, and single keys.
_TABLES = (
    "cached_tokens_total", "ttft_ms", "tpot_ms", "e2e_ms", "queue_ms", "throughput", "bytes",
    "evicted_tokens_total",
)  # fmt: skip
_KEYS = (
    "requests", "prompt_tokens", "output_tokens", "computed_tokens", "cache_hit_rate",
    "gpu.busy_fraction", "restores.done", "restores.policy_skips", "retractions",
    "recomputed_tokens", "max_waiting_requests", "max_running_requests",
)  # fmt: skip
_TIERS = ("device", "host", "storage")
_PERCENTILES = ("mean", "p50", "p90", "p99")


class Job(NamedTuple):
    """A cell on its way to a worker: plain data. `folder`: where its result goes; "" for nowhere.

    `sources`: what `sim.sweep.sources_digest` must be there; "" where it is not asked. `own`:
    classes of the user's in place of built-in policies, whose stand-ins the options hold.
    """

    number: int
    options: dict[str, object]
    folder: str
    sources: str
    own: tuple[OwnClass, ...] = ()


class Done(NamedTuple):
    """A cell that was run: its figures, or what was wrong with it."""

    number: int
    figures: dict[str, Any]
    error: str


# Of this process.
_kept = KeptTraces()


def job_of(
    number: int,
    scenario: Scenario,
    folder: str = "",
    sources: str = "",
    own: tuple[OwnClass, ...] = (),
) -> Job:
    """The job that runs `scenario`."""
    options = {
        key: str(value) if isinstance(value, Size) else value for key, value in values(scenario)
    }
    return Job(number, options, folder, sources, own)


def run_job(job: Job) -> Done:
    """Run a cell. Raises KeyboardInterrupt where Ctrl-C reached this process; then there is
    nothing of it.
    """
    try:
        if job.sources:
            _check_sources(job.sources)
        scenario = load_scenario(None, job.options)
        return Done(job.number, _run(scenario, job), "")
    except HiCacheError as error:
        return Done(job.number, {}, str(error))
    finally:
        # A run leaves cycles, and a command's process has the collector off.
        gc.collect()


def _run(scenario: Scenario, job: Job) -> dict[str, Any]:
    try:
        trace = _kept.open(scenario)
    except OSError as error:
        raise InputError(f"{scenario.trace.path}: {error.strerror}") from None
    run = prepare(scenario, trace=trace)
    for engine in run.instances:
        install_owned(engine, job.own)
    run.execute()
    if run.interrupted:
        raise KeyboardInterrupt
    outcome = run.outcome()
    note(outcome, {each.key: each.name for each in job.own})
    if job.folder:
        write_result(job.folder, outcome.summary, outcome.columns, outcome.scenario_text)
    return figures_of(json.loads(summary_text(outcome.summary)))


def figures_of(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a summary; those of times are None where nothing took time."""
    return dict(_figures(summary))


def _figures(summary: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key in _KEYS:
        yield key, _at(summary, key)
    for unit in ("tokens", "pages"):
        for part in (*_TIERS, "total", "ceiling"):
            key = f"hit_rates.all.{unit}.{part}"
            yield key, _at(summary, key)
    yield "hit_rates.last_half.tokens.total", _at(summary, "hit_rates.last_half.tokens.total")
    for tier in _TIERS:
        for size in ("capacity_pages", "capacity_bytes"):
            yield f"tiers.{tier}.{size}", summary["tiers"][tier][size]
    for table in _TABLES:
        names = _PERCENTILES if table.endswith("_ms") else (
            ("duration_s", "requests_per_s", "prompt_tokens_per_s", "output_tokens_per_s")
            if table == "throughput" else tuple(summary[table])
        )  # fmt: skip
        for name in names:
            yield f"{table}.{name}", _at(summary, f"{table}.{name}")
    yield "trace.sha256", summary["trace"]["sha256"]
    yield "warnings", "\n".join(summary["warnings"])
    yield "estimates", len(summary["estimates"])


def _at(summary: Mapping[str, Any], key: str) -> Any:
    found: Any = summary
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _check_sources(expected: str) -> None:
    from socket import gethostname

    from sim.sweep import sources_digest

    if sources_digest() != expected:
        raise InputError(
            f"the node {gethostname()} runs other sources of hicache-lab than this machine: "
            "install the same version on every node"
        )
