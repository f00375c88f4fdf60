"""Replays the published mini-HiCache runs and lays each prediction beside its published number.

    python scenarios/reproduce.py                                      print the tables
    python scenarios/reproduce.py --update docs/published-machines.md  put them into the page

A run is a scenario file and flags of `hicache replay`, so that anybody can make it by hand. The
published numbers are read for the tables only: nothing of them reaches a run except through the
profiles. Three kinds of numbers:

    input      published, and the profile was made from it: the prediction cannot miss it
    inferred   not published; follows from a fixed cost or a line that was inferred from inputs
    held out   published and not used for the profile: the prediction could have missed it
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scenario.load import load_scenario
from scenario.records import Scenario
from sim.replay import Outcome, replay

HERE = Path(__file__).resolve().parent
PUBLISHED: dict[str, Any] = json.loads(
    (HERE.parent / "tests/sim/data/published_mini_hicache.json").read_text(encoding="utf-8")
)
GROUPS = ("a", "b")
PREFIX_TOKENS = (350, 1000, 2000, 3500)
TIERS = ("l2", "l3")
# The last requests of each trace count; those before them prime and warm up (make_traces.py).
COUNTED_REQUESTS, COUNTED_ITERATIONS = 80, 8

# Flags that make a published variant of the scenario file. A file as it stands is its L3 variant.
NO_CACHE = ("--l2", "0", "--l3", "0")
THROUGHPUT = {
    "recompute": NO_CACHE,
    "l2": ("--l2", "8x", "--l3", "0"),
    "l3_cost": (),
    "l3_always": ("--policy", "always"),
}
LATENCY = {"recompute": NO_CACHE, "l2": ("--l2", "2x", "--l3", "0"), "l3": ()}
_KEYS = {"--l2": "tiers.l2", "--l3": "tiers.l3", "--policy": "restore.policy"}

# L2 points that the profiles were made from; of group A also the recompute times there.
INPUT_POINTS = {("a", 2000), ("a", 3500), ("b", 3500)}
BEGIN = "<!-- tables of scenarios/reproduce.py -->"
END = "<!-- end of tables -->"


class Run(NamedTuple):
    """One published run: a scenario file below this folder, and flags of `hicache replay`."""

    file: str
    flags: tuple[str, ...]

    @property
    def command(self) -> str:
        """The run by hand, from the folder above this one."""
        return " ".join(["hicache replay --scenario", f"scenarios/{self.file}", *self.flags])

    def scenario(self) -> Scenario:
        """What the command would replay."""
        pairs = zip(self.flags[::2], self.flags[1::2], strict=True)
        return load_scenario(HERE / self.file, {_KEYS[flag]: value for flag, value in pairs})


def throughput_run(group: str, variant: str) -> Run:
    """The run behind a published throughput; `variant` is a key of THROUGHPUT."""
    return Run(f"mini-group-{group}/throughput.toml", THROUGHPUT[variant])


def latency_run(group: str, tokens: int, variant: str) -> Run:
    """The run behind a published latency; `variant` is a key of LATENCY."""
    return Run(f"mini-group-{group}/latency-{tokens}.toml", LATENCY[variant])


class Throughput(NamedTuple):
    """Requests a second of one variant, and what came from L3.

    `storage_tokens` and `prompt_tokens` are those of the requests that the article counts tokens
    of: of group A all 96, of group B the last 80.
    """

    group: str
    variant: str
    predicted: float
    published: float
    predicted_ratio: float  # to recompute
    published_ratio: float
    storage_tokens: int
    prompt_tokens: int


class Latency(NamedTuple):
    """Median time from admission to the token, by variant of LATENCY."""

    group: str
    tokens: int
    median_ms: dict[str, float]

    def speedup(self, tier: str) -> float:
        """How many times faster a restore from `tier` is than computing the prompt."""
        return self.median_ms["recompute"] / self.median_ms[tier]


class Results(NamedTuple):
    """Everything that the tables show."""

    throughputs: list[Throughput]
    latencies: list[Latency]


def results() -> Results:
    """Make all runs; a few seconds."""
    throughputs = [each for group in GROUPS for each in _throughputs(group)]
    latencies = [_latency(group, tokens) for group in GROUPS for tokens in PREFIX_TOKENS]
    return Results(throughputs, latencies)


def published(group: str) -> dict[str, Any]:
    """What the article says of a group."""
    return PUBLISHED[f"group_{group}"]


def _throughputs(group: str) -> Iterable[Throughput]:
    rates = published(group)["throughput_req_s"]
    first = -PUBLISHED["counted_requests"][f"group_{group}"]
    recompute = 0.0
    for variant in THROUGHPUT:
        outcome = replay(throughput_run(group, variant).scenario())
        predicted = requests_per_s(outcome)
        recompute = recompute or predicted
        yield Throughput(
            group, variant, predicted, rates[variant],
            predicted / recompute, rates[variant] / rates["recompute"],
            sum(list(outcome.columns["storage_tokens"])[first:]),
            sum(list(outcome.columns["prompt_tokens"])[first:]),
        )  # fmt: skip


def _latency(group: str, tokens: int) -> Latency:
    outcomes = {name: replay(latency_run(group, tokens, name).scenario()) for name in LATENCY}
    return Latency(group, tokens, {name: median_ms(outcome) for name, outcome in outcomes.items()})


def requests_per_s(outcome: Outcome) -> float:
    """The rate of the last 80 requests, from the end of the one before them to that of the last."""
    columns = outcome.columns
    ends = [sum(times) for times in zip(columns["arrival_ns"], columns["e2e_ns"], strict=True)]
    return COUNTED_REQUESTS * 1e9 / (ends[-1] - ends[-1 - COUNTED_REQUESTS])


def median_ms(outcome: Outcome) -> float:
    """The median of the last 8 requests' time, less their time in the queue."""
    columns = outcome.columns
    times = [e2e - queue for e2e, queue in zip(columns["e2e_ns"], columns["queue_ns"], strict=True)]
    return statistics.median(times[-COUNTED_ITERATIONS:]) / 1e6


# ---------------------------------------------------------------------- tables


def tables(of: Results) -> str:
    """The tables in Markdown, with a line that says what each shows."""
    parts = (
        ("Recomputing a prompt (median of 8):", _recompute_table(of)),
        ("Restoring it; speed-up over recomputing (median of 8):", _speedup_table(of)),
        ("Throughput, requests a second over the 80 that count:", _throughput_table(of)),
        ("What L3 served under the policy `cost`, in prompt tokens:", _hit_table(of)),
    )
    return "\n\n".join(f"{title}\n\n{table}" for title, table in parts)


def _recompute_table(of: Results) -> str:
    rows: list[Sequence[str]] = []
    for each in of.latencies:
        known = _published_recompute_ms(each.group, each.tokens)
        rows.append(
            (
                each.group.upper(), f"{each.tokens:,}", f"{each.median_ms['recompute']:.2f}",
                "-" if known is None else f"{known:.2f}", "inferred" if known is None else "input",
            )
        )  # fmt: skip
    return _markdown("group | tokens | predicted ms | published ms | kind", rows)


def _speedup_table(of: Results) -> str:
    rows: list[Sequence[str]] = []
    for tier in TIERS:
        for each in of.latencies:
            known = published_speedup(each.group, tier, each.tokens)
            rule = held_out_rule(each.group, tier, each.tokens)
            kind = "held out" if known is not None else "inferred"
            if tier == "l2" and (each.group, each.tokens) in INPUT_POINTS:
                kind = "input"
            rows.append(
                (
                    each.group.upper(), tier.upper(), f"{each.tokens:,}",
                    f"{each.median_ms[tier]:.2f}", f"{each.speedup(tier):.2f}",
                    _shown(known),
                    _off(each.speedup(tier), known), "-" if rule is None else f"{rule:.2f}", kind,
                )
            )  # fmt: skip
    return _markdown(
        "group | tier | tokens | predicted ms | speed-up | published | off | rule | kind", rows
    )


def _throughput_table(of: Results) -> str:
    rows: list[Sequence[str]] = []
    for each in of.throughputs:
        is_base = each.variant == "recompute"
        kind = "held out"
        if (each.group, each.variant) == ("a", "l3_always"):
            kind = "held out, another partition"
        rows.append(
            (
                each.group.upper(), _title(each.variant),
                f"{each.predicted:.2f}", f"{each.published:.2f}",
                _off(each.predicted, each.published),
                f"{each.predicted_ratio:.2f}", f"{each.published_ratio:.2f}",
                "-" if is_base else _off(each.predicted_ratio, each.published_ratio), kind,
            )
        )  # fmt: skip
    return _markdown(
        "group | variant | predicted | published | off | over recompute | published | off | kind",
        rows,
    )


def _hit_table(of: Results) -> str:
    rows: list[Sequence[str]] = []
    for each in of.throughputs:
        if each.variant != "l3_cost":
            continue
        known = published(each.group)
        rows.append(
            (
                each.group.upper(), str(PUBLISHED["counted_requests"][f"group_{each.group}"]),
                f"{each.prompt_tokens:,}", f"{each.storage_tokens:,}",
                f"{known['l3_cost_hit_tokens']:,}",
                f"{each.prompt_tokens - each.storage_tokens:,}",
                f"{known['l3_cost_recomputed_tokens']:,}", "held out",
            )
        )  # fmt: skip
    return _markdown(
        "group | requests | tokens | hit in L3 | published | computed | published | kind", rows
    )


def published_speedup(group: str, tier: str, tokens: int) -> float | str | None:
    """A published speed-up: a number, words, or None where there is none."""
    return published(group)[f"{tier}_speedup"].get(str(tokens))


def held_out_rule(group: str, tier: str, tokens: int) -> float | None:
    """The speed-up of L3 by the rule "the published L2 restore + bytes / S2H"."""
    rules = PUBLISHED["held_out"]["l3_speedup"][f"group_{group}"]
    return rules.get(str(tokens)) if tier == "l3" else None


def _published_recompute_ms(group: str, tokens: int) -> float | None:
    """The published time; of group A it is the L2 restore times the L2 speed-up."""
    known = published(group)
    if group == "b":
        return known["recompute_ms"].get(str(tokens))
    restore = known["l2_restore_ms"].get(str(tokens))
    return None if restore is None else restore * known["l2_speedup"][str(tokens)]


def _shown(known: float | str | None) -> str:
    if known is None:
        return "-"
    return known if isinstance(known, str) else f"{known:.2f}"


def _off(predicted: float, known: float | str | None) -> str:
    """How far off the prediction is, in percent."""
    if not isinstance(known, float):
        return "-"
    percent = (predicted / known - 1) * 100
    return "0 %" if abs(percent) < 0.5 else f"{percent:+.0f} %"


def _title(variant: str) -> str:
    return variant.replace("l2", "L2").replace("l3_", "L3, ")


def _markdown(header: str, rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; columns whose every cell has a digit or is "-" stand to the right."""
    numbers = [
        all(cell == "-" or any(sign.isdigit() for sign in cell[:2]) for cell in column)
        for column in zip(*rows, strict=True)
    ]
    rule = "|".join("---:" if each else "---" for each in numbers)
    lines = [f"| {header} |", f"|{rule}|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)


def updated(page: str, text: str) -> str:
    """`page` with `text` between its two marks, which must be there."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"the page has no {BEGIN!r} followed by {END!r}")
    return f"{before}{begin}\n{text}\n{end}{after}"


def main(arguments: Sequence[str]) -> None:
    """Print the tables, or put them into a page."""
    text = tables(results())
    if not arguments:
        print(text)
    elif len(arguments) == 2 and arguments[0] == "--update":
        page = Path(arguments[1])
        page.write_text(updated(page.read_text(encoding="utf-8"), text), encoding="utf-8")
    else:
        raise SystemExit("usage: python scenarios/reproduce.py [--update PAGE]")


if __name__ == "__main__":
    main(sys.argv[1:])
