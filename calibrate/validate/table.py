"""A validation as tables on the terminal, made with rich.

figures, each with its error and what the two runs differ in; tokens by source; where the time
went; what each part of the device model costs; limits
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.markup import escape
from rich.table import Table

from calibrate.into import parts_measured
from calibrate.validate.compare import Figure
from calibrate.validate.timing import KINDS, Total
from calibrate.validate.validation import Validation, measured_at
from report.console import table_console

_TITLES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "end to end"}
_SOURCES = {"device": "L1", "host": "L2", "storage": "L3", "computed": "computed"}
_PARTS = {
    "queue": "in the queue", "restore": "waiting for a restore", "turn": "until its first chunk",
    "prefill": "prefill",
}  # fmt: skip
MOST_DIFFERENCES = 10
Rows = Iterable[Sequence[str]]
Section = tuple[str, Sequence[str], Sequence[Sequence[str]]]


def print_validation(found: Validation, folder: str | None = None) -> None:
    """Print it to standard output."""
    console = table_console(160)
    console.print(escape(headline(found)), soft_wrap=True)
    for title, header, rows in sections(found):
        if not rows:
            continue
        table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
        for place, name in enumerate(header):
            table.add_column(name, justify="right" if place else "left", no_wrap=place > 0)
        for row in rows:
            table.add_row(*(escape(cell) for cell in row))
        console.print(table)
    for line in notes(found):
        console.print(escape(line), soft_wrap=True)
    if folder:
        console.print(f"validation: {escape(folder)}", soft_wrap=True)


def headline(found: Validation) -> str:
    """What was compared with what."""
    summary = found.simulated.summary
    times = ", ".join(run.measured_at or "at an unknown time" for run in found.hardware)
    parts = "".join(f", {key} of {when}" for key, when in parts_measured(found.profile).items())
    truth = "" if found.truth == "profile" else ", with measured durations"
    return (
        f"{found.name}: {summary['requests']:,} requests, {summary['model']} on "
        f"{found.hardware[0].summary['profile']}, policy {found.scenario.restore.policy}; "
        f"{len(found.hardware)} run{'s' * (len(found.hardware) > 1)} ({times}) against the profile "
        f"{found.profile.name} of {measured_at(found.profile) or found.profile.date}"
        f"{parts}{truth}"
    )


def sections(found: Validation) -> list[Section]:
    """(title, header, rows) of every table; the page shows the same."""
    runs = [f"run {place + 1}" for place in range(len(found.hardware))]
    return [
        ("", ["", *runs, "simulated", "error", "runs differ"], list(_figure_rows(found))),
        (
            "prompt tokens by source",
            ["", *runs, "simulated", "points", "error", "runs differ"],
            list(_token_rows(found)),
        ),
        (
            "mean TTFT in its parts, ms",
            ["", *runs, "simulated", "difference"],
            list(_part_rows(found)),
        ),
        (
            "time by device, s: at work + begun late",
            ["", *runs, "simulated", "difference"],
            list(_device_rows(found)),
        ),
        (
            "the device model on the first run's own operations",
            ["", "operations", "measured s", "predicted s", "error", "median", "|median|", "|p95|"],
            [
                [
                    kind, f"{each.operations:,}", f"{each.measured_s:.3f}",
                    f"{each.predicted_s:.3f}", _percent(each.error_percent),
                    _percent(each.median_error_percent), _percent(each.median_absolute_percent),
                    _percent(each.p95_absolute_percent),
                ]
                for kind, each in found.model_errors.items()
            ],
        ),
        (
            "error of the simulation with measured durations put in",
            ["", "TTFT mean", "p50", "p90", "p99", "throughput", "matched"],
            list(_cause_rows(found)),
        ),
        (
            "limits",
            ["", "found", "limit", "allowed", ""],
            [
                [
                    each.name, "-" if each.found is None else f"{each.found:.2f} {each.unit}",
                    f"{each.limit:g}", f"{each.allowed:.2f}", "held" if each.held else "MISSED",
                ]
                for each in found.judged
            ],
        ),
    ]  # fmt: skip


def notes(found: Validation) -> list[str]:
    """What stands below the tables."""
    lines: list[str] = []
    kinds: dict[str, int] = {}
    for each in found.differences:
        kinds[each.kind] = kinds.get(each.kind, 0) + 1
    if found.differences:
        said = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in kinds.items())
        lines.append(
            f"{len(found.differences)} of {len(found.requests)} requests had their tokens from "
            f"other sources than in the first run ({said}); first of them:"
        )
        first = found.first_difference
        shown = [*([first] if first else []), *(d for d in found.differences if d is not first)]
        for each in shown[:MOST_DIFFERENCES]:
            also = "; the two runs differ there, too" if each.in_runs else ""
            lines.append(f"  request {each.request}: {each.reason}{also}")
        if len(shown) > MOST_DIFFERENCES:
            lines.append(f"  ... {len(shown) - MOST_DIFFERENCES} more in validation.json")
    else:
        lines.append("every request had its tokens from the same sources as in the first run")
    lines += [f"warning: {warning}" for warning in found.warnings]
    return lines


def _figure_rows(found: Validation) -> Rows:
    for name, figure in found.figures.items():
        first, _, statistic = name.partition("_")
        if first in _TITLES:
            title, unit = f"{_TITLES[first]} {statistic}", "ms"
        else:
            title = {
                "throughput": "requests", "prompt_tokens": "prompt tokens",
                "output_tokens": "output tokens",
            }[name]  # fmt: skip
            unit = "a second"
        values = [_value(value) for value in (*figure.hardware, figure.simulated)]
        yield [f"{title}, {unit}", *values, _error(figure), _percent(figure.runs_percent)]


def _token_rows(found: Validation) -> Rows:
    for source, share in found.shares.items():
        runs = share.runs_points
        yield [
            _SOURCES[source], *(f"{each:,}" for each in (*share.hardware, share.simulated)),
            f"{share.points:+.2f}", _error(share.figure),
            "" if runs is None else f"{runs:+.2f} points",
        ]  # fmt: skip
    for source, share in found.shares_apart.items():
        if share != found.shares[source]:
            yield [
                f"{_SOURCES[source]} without flips near zero",
                *(f"{each:,}" for each in (*share.hardware, share.simulated)),
                f"{share.points:+.2f}", _error(share.figure), "",
            ]  # fmt: skip


def _part_rows(found: Validation) -> Rows:
    *real, simulated = found.parts
    for part, title in _PARTS.items():
        mean = sum(run[part] for run in real) / len(real)
        yield [
            title, *(f"{run[part]:.2f}" for run in found.parts), f"{simulated[part] - mean:+.2f}"
        ]  # fmt: skip


def _device_rows(found: Validation) -> Rows:
    nothing = Total(0, 0.0, 0.0, 0.0)
    for kind in KINDS:
        of_runs = [run.get(kind, nothing) for run in found.totals]
        if not any(total.operations for total in of_runs):
            continue
        taken = [total.service_s + total.wait_s for total in of_runs]
        mean = sum(taken[:-1]) / len(taken[:-1])
        yield [
            kind,
            *(f"{t.operations:,}: {t.service_s:.3f} + {t.wait_s:.3f}" for t in of_runs),
            f"{taken[-1] - mean:+.3f}",
        ]
    *real, simulated = found.idle_s
    yield [
        "GPU idle", *(f"{each:.3f}" for each in found.idle_s),
        f"{simulated - sum(real) / len(real):+.3f}",
    ]  # fmt: skip


def _cause_rows(found: Validation) -> Rows:
    if not found.causes:
        return
    names = ("ttft_mean", "ttft_p50", "ttft_p90", "ttft_p99", "throughput")
    if found.truth == "profile":
        yield ["the profile alone", *(_error(found.figures[name]) for name in names), ""]
    for cause in found.causes:
        whole = max(cause.matched + cause.unmatched, 1)
        yield [
            cause.name, *(_error(cause.figures[name]) for name in names),
            f"{100 * cause.matched / whole:.0f} %",
        ]  # fmt: skip


def _error(figure: Figure) -> str:
    return _percent(figure.error_percent)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:+.2f} %"


def _value(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:,.4g}"
