"""Makes the part of docs/sglang.md that says which of SGLang's flags matters when, from replays.

    python docs/sglang_flags.py CONVERSATION.jsonl      minutes; the trace is that of two-tiers.md

Every row is one `hicache replay`, whose command stands in the page. A flag that this version cannot
simulate has no row: nothing is said of it.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any, NamedTuple

from hicache.errors import InputError
from scenario.load import load_scenario
from scenario.sglang_args import read_server_args, with_server_args
from sim.replay import replay

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "sglang.md"
AGENTS = "data/agents.jsonl"
CONVERSATION = "mooncake_conversation.jsonl"
BEGIN, END = "<!-- made by docs/sglang_flags.py -->\n", "<!-- end of what is made -->\n"
BEFORE = "## Counters side by side\n"
HEADING = "## Which flag matters when\n"

SERVER = "--enable-hierarchical-cache"
L3 = "--hicache-storage-backend file"
# What else a replay of each trace is told: the conversation comes at a rate that the GPU can serve.
TRACES: dict[str, dict[str, object]] = {
    AGENTS: {"tiers.l1": "60GiB", "tiers.l3": "10x"},
    CONVERSATION: {"tiers.l1": "60GiB", "tiers.l3": "10x", "trace.speed": 0.2},
}
FLAGS = {"tiers.l1": "--l1", "tiers.l3": "--l3", "trace.speed": "--speed"}
COLUMNS = ("L1", "L2", "L3", "hit", "TTFT p50", "p99", "L1 > L2", "L2 > L3", "L3 > L2")


class Question(NamedTuple):
    """One flag: what is common to its rows, and the values that are tried. `storage`: with an
    L3.
    """

    title: str
    common: str
    values: tuple[str, ...]
    storage: bool = False


QUESTIONS = (
    Question(
        "Page size", f"{SERVER} --hicache-ratio 2",
        tuple(f"--page-size {size}" for size in (16, 64, 256, 512)),
    ),
    Question(
        "Ratio", f"{SERVER} --page-size 64",
        tuple(f"--hicache-ratio {ratio}" for ratio in (1, 1.5, 2, 4, 8)),
    ),
    Question(
        "Write policy", f"{SERVER} --page-size 64 --hicache-ratio 2",
        tuple(
            f"--hicache-write-policy {policy}"
            for policy in ("write_through", "write_through_selective", "write_back")
        ),
    ),
    Question(
        "Stop policy of prefetches", f"{SERVER} --page-size 64 --hicache-ratio 2 {L3}",
        tuple(
            f"--hicache-storage-prefetch-policy {policy}"
            for policy in ("best_effort", "timeout", "wait_complete")
        ),
        storage=True,
    ),
    Question(
        "Threshold of prefetches", f"{SERVER} --page-size 64 --hicache-ratio 2 {L3}",
        tuple(
            f"--hicache-storage-backend-extra-config '{{\"prefetch_threshold\": {tokens}}}'"
            for tokens in (256, 2048, 16384)
        ),
        storage=True,
    ),
)  # fmt: skip


def answered(question: Question) -> list[str]:
    """The values that this version can simulate; none unless there are two to compare."""
    values: list[str] = []
    for value in question.values:
        try:
            notes = read_server_args(f"{question.common} {value}").notes
        except InputError:
            continue
        flag = value.split()[0]
        if not any("not in this version" in note and flag in note for note in notes):
            values.append(value)
    return values if len(values) > 1 else []


def command(trace: str, question: Question, value: str = "...") -> str:
    """What a reader types for a row."""
    words = ["hicache", "replay", trace]
    for key, given in _given(trace, question).items():
        words += [FLAGS[key], str(given)]
    return f"{' '.join(words)} --sglang-args {shlex.quote(f'{question.common} {value}')}"


def run_row(trace: str, path: str, question: Question, value: str) -> dict[str, Any]:
    """The summary of one replay."""
    given = {**_given(trace, question), "trace.path": path}
    overrides, _ = with_server_args(f"{question.common} {value}", None, given)
    return replay(load_scenario(None, overrides)).summary


def row(value: str, summary: dict[str, Any]) -> str:
    """A row of a table: hits in percent of prompt tokens, times in ms, what moved in GiB."""
    rates, moved = summary["hit_rates"]["all"]["tokens"], summary["bytes"]
    hits = (rates[name] for name in ("device", "host", "storage", "total"))
    cells = [
        f"`{value}`",
        *(f"{100 * hit:.2f}" for hit in hits),
        *(f"{summary['ttft_ms'][name] or 0:,.0f}" for name in ("p50", "p99")),
        *(f"{moved[name] / 2**30:,.0f}" for name in ("d2h", "h2s", "s2h")),
    ]
    return f"| {' | '.join(cells)} |"


def table(trace: str, question: Question, rows: list[str]) -> str:
    """One table with the command of its rows."""
    head = f"| | {' | '.join(COLUMNS)} |\n|---|{'---:|' * len(COLUMNS)}"
    return f"```sh\n{command(trace, question)}\n```\n\n{head}\n" + "\n".join(rows)


def filled(page: str, body: str) -> str:
    """The page with its made part made anew."""
    made = f"{HEADING}\n{BEGIN}{body}\n{END}\n"
    if BEGIN not in page:
        assert BEFORE in page, f"{PAGE.name} has no place for what is made"
        return page.replace(BEFORE, made + BEFORE)
    head, _, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    assert end, f"{PAGE.name}: its made part has no end"
    return f"{head}{BEGIN}{body}\n{END}{tail}"


def main(conversation: str) -> None:
    """Run every replay and bring the page up to date."""
    paths = {AGENTS: str(DOCS.parent / AGENTS), CONVERSATION: conversation}
    parts = [
        "Hits in percent of the prompt tokens, times in ms, what moved in GiB; Qwen3-8B on one "
        "`nvidia-h200`, preset `sglang-0.5.20`."
    ]
    for question in QUESTIONS:
        values = answered(question)
        if not values:
            print(f"{question.title}: not in this version", file=sys.stderr)
            continue
        parts.append(f"### {question.title}")
        for trace, path in paths.items():
            rows: list[str] = []
            for value in values:
                rows.append(row(value, run_row(trace, path, question, value)))
                print(trace, rows[-1], file=sys.stderr)
            parts.append(table(trace, question, rows))
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(filled(page, "\n\n".join(parts)), encoding="utf-8")


def _given(trace: str, question: Question) -> dict[str, object]:
    given = dict(TRACES[trace])
    if not question.storage:
        del given["tiers.l3"]
    return given


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
