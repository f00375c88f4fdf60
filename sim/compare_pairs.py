"""Two runs of the same requests laid side by side, and where their difference comes from.

A pair is a request that ended in both. `source`: the deepest place that part of its prompt came
from, or "computed" where nothing was found. Which of the two was faster is said where they differ
by more than 1 % and 0.1 ms (untimed: where hits differ at all). Refuses to say whether a difference
is more than chance: `sim.compare_stats` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hicache.errors import InputError
from sim.compare_stats import completion_gaps_ns, units_of

# Of pandas, which has no types that a checker could use.
DataFrame = Any

SOURCES = ("device", "host", "storage", "computed")
LABELS = {"device": "L1", "host": "L2", "storage": "L3", "computed": "computed"}
PARTS = ("queue", "restore", "wait", "prefill")
SAME_SHARE, SAME_NS = 0.01, 100_000
MOST_NAMED = 10
_COMMON = ("request", "arrival_ns", "prompt_tokens", "session", "turn")
_OF_A_SIDE = (
    *(f"{source}_tokens" for source in SOURCES), "queue_ns", "restore_ns", "prefill_ns", "ttft_ns",
    "tpot_ns", "e2e_ns", "generated_tokens", "reason",
)  # fmt: skip


def pair(base: DataFrame, other: DataFrame, trace: str, names: tuple[str, str]) -> DataFrame:
    """One row for each request that ended in both runs of `trace`.

    Columns: those of requests.parquet that both share, `trace`, `unit`; and with the endings
    `_base` and `_other` what each run made of it, `gap_ns`, `source`, `wait_ns`. `change` is
    "gained", "lost" or "same", `ttft_change_ns` the other's less the base's. Raises InputError
    where equal numbers do not mean equal requests.
    """
    sides = [_side(rows) for rows in (base, other)]
    joined = sides[0].merge(sides[1], on="request", suffixes=("_base", "_other"), sort=True)
    if not len(joined):
        raise InputError(f"{trace}: no request ended under both {names[0]} and {names[1]}")
    if (joined["prompt_tokens_base"] != joined["prompt_tokens_other"]).any():
        raise InputError(
            f"{trace}: requests of one number have not the same prompt under {names[0]} and "
            f"{names[1]}: their options read the trace in two ways"
        )
    for name in _COMMON[1:]:
        # In a closed loop one request may arrive at two times; the base's is shown.
        joined[name] = joined[f"{name}_base"]
    joined = joined.drop(columns=[f"{n}_{s}" for n in _COMMON[1:] for s in ("base", "other")])
    joined["trace"] = trace
    joined["unit"], kind = units_of(joined["session"].tolist())
    joined.attrs["unit"] = kind
    change = joined["ttft_ns_other"].astype(float) - joined["ttft_ns_base"].astype(float)
    joined["ttft_change_ns"] = change
    joined["hit_change_tokens"] = joined["computed_tokens_base"] - joined["computed_tokens_other"]
    return joined


def join_traces(parts: Sequence[DataFrame]) -> DataFrame:
    """The pairs of several traces in one table, their units kept apart."""
    import pandas

    shifted: list[DataFrame] = []
    start = 0
    for part in parts:
        moved = part.copy()
        moved["unit"] = moved["unit"] + start
        start = int(moved["unit"].max()) + 1
        shifted.append(moved)
    whole = pandas.concat(shifted, ignore_index=True)
    whole.attrs["unit"] = "; ".join(dict.fromkeys(part.attrs["unit"] for part in parts))
    return whole


def judge_changes(pairs: DataFrame, *, timed: bool) -> Any:
    """ "gained", "lost" or "same" for each pair."""
    import pandas

    if timed:
        change = pairs["ttft_change_ns"].to_numpy(float)
        base = pairs["ttft_ns_base"].to_numpy(float, na_value=np.nan)
        least = np.maximum(SAME_NS, SAME_SHARE * np.nan_to_num(base))
        gained, lost = change < -least, change > least
    else:
        hits = pairs["hit_change_tokens"].to_numpy(float)
        gained, lost = hits > 0, hits < 0
    words = np.where(gained, "gained", np.where(lost, "lost", "same"))
    return pandas.Series(words, index=pairs.index)


def by_prompt(pairs: DataFrame, *, timed: bool) -> list[dict[str, Any]]:
    """Rows by prompt length, in powers of two; `from_tokens` inclusive, `to_tokens` exclusive."""
    powers = np.floor(np.log2(np.maximum(pairs["prompt_tokens"].to_numpy(float), 1))).astype(int)
    rows: list[dict[str, Any]] = []
    for power in sorted(set(powers.tolist())):
        head = {"from_tokens": 2**power, "to_tokens": 2 ** (power + 1)}
        rows.append({**head, **_group(pairs, powers == power, timed)})
    return rows


def by_source(pairs: DataFrame, *, timed: bool) -> list[dict[str, Any]]:
    """Rows by where prompts came from in the base and in the other run, the largest change of TTFT
    (untimed: of hits) first.
    """
    rows: list[dict[str, Any]] = []
    base, other = pairs["source_base"].to_numpy(), pairs["source_other"].to_numpy()
    for before in SOURCES:
        for after in SOURCES:
            chosen = (base == before) & (other == after)
            if chosen.any():
                head = {"base": LABELS[before], "other": LABELS[after]}
                rows.append({**head, **_group(pairs, chosen, timed)})
    key = "ttft_change_s" if timed else "hit_change_tokens"
    return sorted(rows, key=lambda row: -abs(row[key]))


def by_part(pairs: DataFrame) -> dict[str, dict[str, float]]:
    """What mean TTFT consists of in both runs, in ms: queue, restore, wait (for the GPU between
    them) and prefill.
    """
    known = pairs.dropna(subset=["ttft_ns_base", "ttft_ns_other"])
    parts: dict[str, dict[str, float]] = {}
    for part in PARTS:
        base, other = (
            float(known[f"{part}_ns_{side}"].mean()) / 1e6 if len(known) else 0.0
            for side in ("base", "other")
        )
        parts[part] = {"base_ms": base, "other_ms": other, "change_ms": other - base}
    return parts


def tokens_by_source(pairs: DataFrame) -> dict[str, dict[str, int]]:
    """Prompt tokens by source in both runs."""
    counts: dict[str, dict[str, int]] = {}
    for source in SOURCES:
        base, other = (int(pairs[f"{source}_tokens_{side}"].sum()) for side in ("base", "other"))
        counts[LABELS[source]] = {"base": base, "other": other, "change": other - base}
    return counts


def counts(pairs: DataFrame) -> dict[str, int]:
    """How many requests gained, lost, and stayed."""
    found = pairs["change"].value_counts()
    return {word: int(found.get(word, 0)) for word in ("gained", "lost", "same")}


def most_changed(pairs: DataFrame, *, timed: bool) -> dict[str, list[dict[str, Any]]]:
    """The requests that gained and lost most."""
    key = "ttft_change_ns" if timed else "hit_change_tokens"
    ordered = pairs.sort_values([key, "trace", "request"], kind="stable")
    first, last = ordered.head(MOST_NAMED), ordered.tail(MOST_NAMED).iloc[::-1]
    gainers, losers = (first, last) if timed else (last, first)
    return {
        word: [_named(row) for row in rows.to_dict("records") if row["change"] == word]
        for word, rows in (("gained", gainers), ("lost", losers))
    }


def _side(rows: DataFrame) -> DataFrame:
    made = rows[[*_COMMON, *_OF_A_SIDE]].copy()
    made["gap_ns"] = completion_gaps_ns(rows)
    source = np.full(len(rows), "computed", dtype=object)
    for name in ("device", "host", "storage"):
        source[(rows[f"{name}_tokens"] > 0).to_numpy()] = name
    made["source"] = source
    known = rows[["queue_ns", "restore_ns", "prefill_ns"]].sum(axis=1)
    made["wait_ns"] = rows["ttft_ns"].astype(float) - known
    return made


def _group(pairs: DataFrame, chosen: np.ndarray, timed: bool) -> dict[str, Any]:
    """What every row of a table says of its requests."""
    mine = pairs[chosen]
    asked = int(mine["prompt_tokens"].sum())
    row: dict[str, Any] = {
        "requests": len(mine),
        **counts(mine),
        "prompt_tokens": asked,
        "hit_rate_base": 1 - int(mine["computed_tokens_base"].sum()) / max(asked, 1),
        "hit_rate_other": 1 - int(mine["computed_tokens_other"].sum()) / max(asked, 1),
        "hit_change_tokens": int(mine["hit_change_tokens"].sum()),
    }
    if timed:
        known = mine.dropna(subset=["ttft_change_ns"])
        row["ttft_mean_ms_base"] = _mean_ms(known["ttft_ns_base"])
        row["ttft_mean_ms_other"] = _mean_ms(known["ttft_ns_other"])
        row["ttft_change_s"] = float(known["ttft_change_ns"].sum()) / 1e9
    return row


def _mean_ms(values: Any) -> float | None:
    return float(values.astype(float).mean()) / 1e6 if len(values) else None


def _named(row: Mapping[str, Any]) -> dict[str, Any]:
    named: dict[str, Any] = {
        "trace": row["trace"],
        "request": int(row["request"]),
        "session": row["session"],
        "prompt_tokens": int(row["prompt_tokens"]),
    }
    for side in ("base", "other"):
        named[side] = {
            **{LABELS[each]: int(row[f"{each}_tokens_{side}"]) for each in SOURCES},
            "reason": row[f"reason_{side}"],
            "ttft_ms": _ms(row[f"ttft_ns_{side}"]),
        }
    return named


def _ms(value: Any) -> float | None:
    return None if value is None or value != value else float(value) / 1e6  # noqa: PLR0124
