"""What the cost policy makes of restoring, in whole engines on a `restore_rig`.

Each function adds what it found to a `Bench`: `choose` for prompts of one length, `choose_mixed`
for all lengths in turns, `rotate` for throughput beside the policies `always` and `never`. The
table's rows, measured before, say which side is the faster one. Refuses to begin what the budget
leaves no time for.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from restore_rig import Rig  # before Triton is imported

# isort: split
from hicache.options import RestoreOptions
from hicache.requests import Request

GIB = 1 << 30
TIERS = ("L2", "L3 warm", "L3 cold")  # the slowest last
# Sides of a row within this part of each other are equally right.
NEAR = 0.05
MOST_LOSS = 0.05
LAST = 4  # choices that count in the end
SIDES = {"cost": "restore", "recompute_cheaper": "recompute"}
# Slower than any disk worth an L3 is written: only the first requests wait for it.
WRITES_GIB_PER_S = {"L2": 10.0, "L3 cold": 1.0, "L3 warm": 2.0}


@dataclass
class Bench:
    """What is measured, and with how much time."""

    rig: Rig
    lengths: tuple[int, ...]
    tiers: tuple[str, ...]
    budget_s: float
    begun_s: float
    turns: int  # requests of a row of choices, behind the first two
    prefixes: int  # that rotate
    rows: list[dict[str, Any]] = field(default_factory=list)
    choices: list[dict[str, Any]] = field(default_factory=list)
    mixed: list[dict[str, Any]] = field(default_factory=list)
    rotating: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def late(self, what: str, needs_s: float = 0.0) -> bool:
        """Whether the budget would be used up; then `what` is skipped."""
        if time.monotonic() - self.begun_s + needs_s < self.budget_s:
            return False
        self.skipped.append(what)
        return True

    def hit_pages(self, tokens: int) -> int:
        """Whole pages of a prompt that can hit: at least one token is computed."""
        return (tokens - 1) // self.rig.page_tokens

    def pages(self, tokens: int) -> int:
        """Pages that a prompt and its one token of answer take."""
        return -(-(tokens + 1) // self.rig.page_tokens)

    def request(
        self, number: int, prefix: int, tokens: int, *, after: int = -1, delay_ns: int = 0
    ) -> Request:
        """A prompt that comes so long after another's end, answered with one token."""
        pages = tokens // self.rig.page_tokens
        return Request(
            number, -1 if after >= 0 else 0, tokens, 1, ((prefix * 100_000, pages),), pages,
            after=after, delay_ns=delay_ns if after >= 0 else 0,
        )  # fmt: skip


def store_of(tier: str) -> str:
    """The rig's store behind a tier; any for L2, whose engines have no L3."""
    return "warm" if tier == "L3 warm" else "cold"


def restore_s(row: dict[str, Any], tier: str) -> float:
    """Seconds to the first token by way of a restore from `tier`."""
    read_s = {"L2": 0.0, "L3 cold": row["read_s"]["cold"], "L3 warm": row["read_s"]["warm"]}[tier]
    return read_s + row["copy_s"]["auto"] + row["rest_s"]


# Choices ----------------------------------------------------------------------------------------


def pause_ns(bench: Bench, tier: str, tokens: int) -> int:
    """How long a first request is given to get where it is to be read from."""
    size_bytes = bench.hit_pages(tokens) * bench.rig.page_bytes
    return int((0.02 + size_bytes / (WRITES_GIB_PER_S[tier] * GIB)) * 1e9)


def choose(bench: Bench, row: dict[str, Any], tier: str, prior: dict[str, float]) -> None:
    """Two prompts of a row's length take turns under `cost`; what it did in the end."""
    rig, tokens = bench.rig, row["tokens"]
    recompute_s, restored_s = row["recompute_s"], restore_s(row, tier)
    turns = bench.turns if tokens < 5000 else bench.turns * 2 // 3
    what = f"choices of {tokens} tokens, {tier}"
    if bench.late(what, turns * max(recompute_s, min(restored_s, 2 * recompute_s))):
        return
    pages = bench.pages(tokens)
    pause = pause_ns(bench, tier, tokens)
    requests = [
        bench.request(
            number, number % 2, tokens, after=number - 1, delay_ns=pause if number <= 2 else 10**6
        )
        for number in range(2 + turns)
    ]
    restore = RestoreOptions(policy="cost", probe_every=4, **prior)
    deep = tier != "L2"
    options = rig.options(
        pages + 1, pages + 1 if deep else 2 * pages + 2, 2 * pages + 2 if deep else 0, restore
    )
    columns = rig.run(requests, options, store_of(tier))
    reasons = list(columns["reason"])
    bench.choices.append(judged(row, tier, reasons[2:], recompute_s, restored_s))


def judged(
    row: dict[str, Any], tier: str, reasons: list[str], recompute_s: float, restored_s: float
) -> dict[str, Any]:
    """The side that was taken in the end, beside the faster one.

    A reason other than those of SIDES (nothing lay below L1) is a row that was set up wrong: it
    has chosen nothing.
    """
    taken = [SIDES.get(reason, "nothing") for reason in reasons if reason != "probe"]
    last = set(taken[-LAST:])
    chosen = last.pop() if len(last) == 1 else "both"
    faster = "restore" if restored_s < recompute_s else "recompute"
    near = abs(restored_s - recompute_s) <= NEAR * max(restored_s, recompute_s)
    wrong = [place for place, side in enumerate(taken) if side != faster]
    return {
        "tokens": row["tokens"], "tier": tier, "recompute_s": recompute_s,
        "restore_s": restored_s, "faster": faster, "near": near, "chosen": chosen,
        "right": chosen == faster or (near and "nothing" not in taken),
        "choices_until_right": wrong[-1] + 1 if wrong else 0, "reasons": reasons,
    }  # fmt: skip


def choose_mixed(bench: Bench, tier: str, rounds: int) -> None:
    """All lengths take turns in one engine that begins with its own priors."""
    rig, rows = bench.rig, bench.rows
    per_round_s = sum(min(r["recompute_s"], restore_s(r, tier)) for r in rows)
    if bench.late(f"mixed lengths, {tier}", 1.3 * rounds * per_round_s):
        return
    requests: list[Request] = []
    for _ in range(rounds):
        for row in rows:
            number, tokens = len(requests), row["tokens"]
            before = bench.lengths[(number - 1) % len(rows)]
            pause = pause_ns(bench, tier, before) if number <= len(rows) else 10**6
            requests.append(bench.request(number, tokens, tokens, after=number - 1, delay_ns=pause))
    largest = bench.pages(max(bench.lengths))
    total = sum(bench.pages(tokens) for tokens in bench.lengths)
    deep = tier != "L2"
    options = rig.options(
        largest + 2, largest + 2 if deep else total, total if deep else 0,
        RestoreOptions(policy="cost", probe_every=4),
    )  # fmt: skip
    columns = rig.run(requests, options, store_of(tier))
    for place, row in enumerate(rows):
        reasons = list(columns["reason"])[place + len(rows) :: len(rows)]
        made = judged(row, tier, reasons, row["recompute_s"], restore_s(row, tier))
        bench.mixed.append(made)


# Rotating prefixes ------------------------------------------------------------------------------


def crowd(bench: Bench, tokens: int, pause: int, turns: int) -> list[Request]:
    """Prompts over and over: the first ones one by one, so that they get to where they are read
    from; then a quarter of `turns` all at once, to learn from; then the rest all at once.
    """
    prefixes, first = bench.prefixes, bench.prefixes + turns // 4

    def after(number: int) -> int:
        if number <= prefixes:
            return number - 1
        return prefixes - 1 if number < first else first - 1

    return [
        bench.request(number, number % prefixes, tokens, after=after(number), delay_ns=pause)
        for number in range(prefixes + turns)
    ]


def rotate(
    bench: Bench, row: dict[str, Any], tier: str, turns: int, passes: int,
    prior: dict[str, float],
) -> None:  # fmt: skip
    """A few prompts over and over under each policy: seconds from the arrival of those that count
    to the last one's token. `turns`: requests behind the first ones; `passes`: runs of each policy,
    there and back.
    """
    tokens, rig = row["tokens"], bench.rig
    slower_s = max(row["recompute_s"], restore_s(row, tier))
    if bench.late(f"rotating {tokens} tokens, {tier}", passes * 2 * turns * slower_s):
        return
    pages, pause = bench.pages(tokens), pause_ns(bench, tier, tokens)
    all_pages, few_pages = (bench.prefixes + 1) * pages, max(1, bench.prefixes * 3 // 8) * pages + 1
    deep = tier != "L2"
    sizes = (few_pages, few_pages, all_pages) if deep else (few_pages, all_pages, 0)
    first = bench.prefixes + turns // 4
    policies = ("never", "always", "cost")
    seconds: dict[str, list[float]] = {policy: [] for policy in policies}
    ttft: dict[str, list[float]] = {policy: [] for policy in policies}

    def run(policy: str, turns: int) -> dict[str, Sequence[Any]]:
        restore = RestoreOptions(policy=policy, probe_every=64, **prior)  # pyright: ignore
        requests = crowd(bench, tokens, pause, turns)
        return rig.run(requests, rig.options(*sizes, restore), store_of(tier))

    if not bench.rotating:
        # Steps of several prompts are compiled when they first come.
        run("never", bench.prefixes)
        run("always", bench.prefixes)
    for place in range(passes):
        for policy in policies if place % 2 == 0 else policies[::-1]:
            columns = run(policy, turns)
            arrival, waited = columns["arrival_ns"][first:], columns["ttft_ns"][first:]
            ends = [a + b for a, b in zip(arrival, waited, strict=True)]
            seconds[policy].append((max(ends) - min(arrival)) / 1e9)
            ttft[policy].append(statistics.mean(waited) / 1e9)
    made = {policy: statistics.mean(values) for policy, values in seconds.items()}
    better = min(made["never"], made["always"])
    bench.rotating.append(
        {
            "tokens": tokens, "tier": tier, "requests": turns - turns // 4, "seconds": made,
            "each": seconds, "mean_ttft_s": {p: statistics.mean(v) for p, v in ttft.items()},
            "loss": made["cost"] / better - 1, "holds": made["cost"] <= (1 + MOST_LOSS) * better,
        }
    )  # fmt: skip
