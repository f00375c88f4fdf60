"""What `hicache learning` does once its arguments are read.

OUT/learning.json   how often the choice was right, from when on, and what it lost
OUT/learning.csv    every decision
OUT/learning.png    belief over truth, and the regret so far
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

from calibrate.learning import Learning, draw, learn
from calibrate.validate.runs import Played, load_run
from calibrate.validate.validation import as_the_machine_did
from hicache.errors import InputError
from report.plots.style import save
from scenario.load import load_scenario
from scenario.results import summary_text
from traces.reader import short_name

NAMES = ("learning.json", "learning.csv", "learning.png")
# What may be changed about a run that was made: what is taken for the truth.
_OF_THE_TRUTH = ("machine.profile", "machine.transfer_mode", "trace.path")


def run_learning(
    source: str,
    overrides: Mapping[str, object],
    *,
    out: str | None = None,
    show: Literal["table", "folder"] = "table",
) -> int:
    """Look at what was learned, write the folder, print. Returns the exit code.

    `source`: a scenario's file, which is simulated, or the result folder of a run on hardware.
    Raises HiCacheError subclasses; nothing is written then.
    """
    run: Played | None = None
    file = source
    if os.path.isdir(source):
        for key in overrides:
            if key not in _OF_THE_TRUTH:
                raise InputError(
                    f"command line: {key} cannot be changed for a run that was made: only "
                    f"{', '.join(_OF_THE_TRUTH)} can"
                )
        moved = {key: value for key, value in overrides.items() if key == "trace.path"}
        run = load_run(source, "run", moved)
        file = os.path.join(source, "scenario.toml")
    scenario = load_scenario(file, overrides)
    if run is not None and "machine.transfer_mode" not in overrides:
        scenario = as_the_machine_did(scenario)
    name = os.path.basename(os.path.abspath(source)).removesuffix(".toml")
    folder = out or os.path.join("results", f"learning-{name}")
    check_folder(folder)
    found = learn(scenario, f"{name}: {short_name(scenario.trace.path)}", run)
    write(folder, found)
    if show == "table":
        print_learning(found)
        print(f"learning: {os.path.relpath(folder)}")
    else:
        print(os.path.relpath(folder))
    return 0


def check_folder(folder: str) -> None:
    """Raises InputError if it cannot be written."""
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise InputError(f"{folder} is a file; what was learned goes into a folder")
    if os.path.isdir(folder):
        foreign = sorted(set(os.listdir(folder)) - set(NAMES))
        if foreign:
            raise InputError(
                f"{folder} holds {foreign[0]}, which does not belong to it; choose another folder "
                "or empty it"
            )


def write(folder: str, found: Learning) -> None:
    """Write the three files. Raises InputError where that cannot be."""
    report, rows, picture = (os.path.join(folder, name) for name in NAMES)
    try:
        os.makedirs(folder, exist_ok=True)
        with open(report, "w", encoding="utf-8") as opened:
            opened.write(summary_text(found.summary()))
        found.table.to_csv(rows, index_label="decision", lineterminator="\n")
        save(draw(found), picture, "hicache learning")
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror or error}") from None


def print_learning(found: Learning) -> None:
    """The summary in a few lines, to standard output."""
    for line in lines(found.summary()):
        print(line)


def lines(summary: Mapping[str, Any]) -> list[str]:
    """The same as text."""
    count, right = summary["decisions"], summary["right_choices"]
    text = [f"{summary['name']}, truth: {summary['profile']}"]
    if not count:
        return [*text, "no request had a hit below L1: the policy was never asked"]
    quarters = ", ".join(
        "-" if share is None else f"{100 * share:.0f} %"
        for share in summary["right_share_by_quarter"]
    )
    text.append(f"{right:,} of {count:,} choices were right; by quarter of the run: {quarters}")
    samples = summary["samples_until_settled"]
    if samples is None:
        text.append("they never settled: of the last ones more than one in 20 was wrong")
    else:
        text.append(
            "settled (at most one in 20 is wrong) from decision "
            f"{summary['settled_at_decision'] + 1} on, after {samples['prefill']} prefill steps, "
            f"{samples['h2d']} L2 > L1 and {samples['s2h']} L3 > L2 copies"
        )
    ratios = ", ".join(
        f"{title} {ratio:.2f}"
        for title, ratio in zip(
            ("computing", "L2 > L1", "L3 > L2"),
            summary["belief_over_truth_at_end"].values(),
            strict=True,
        )
        if ratio is not None
    )
    text.append(f"belief over truth at the end: {ratios}")
    means = summary["ttft_mean_ms"]
    text.append(
        f"regret: {summary['regret_of_decisions_ms']:,.1f} ms over all decisions, "
        f"{summary['probes']:,} of which were probes; mean TTFT "
        f"{means['cost_simulated']:,.1f} ms with the cost policy, "
        f"{means['truth_known_simulated']:,.1f} ms where the truth is known "
        f"({summary['regret_ttft_mean_percent']:+.1f} %)"
    )
    return text
