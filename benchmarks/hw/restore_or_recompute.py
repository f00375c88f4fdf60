"""Restore or recompute? For prompts of six lengths, from L2 and from L3, and what the cost policy
makes of it.

    python benchmarks/hw/restore_or_recompute.py --out restore_or_recompute.json      2 minutes
    python benchmarks/hw/restore_or_recompute.py --device cpu --tiny                  a smoke test

Three parts, on one model with random weights and one set of tiers (`restore_rig`):

* table: a prompt of n tokens computed, against its whole pages restored (L2 by each back-end; L3
  past the page cache, from a page cache that was dropped, and from a warm one) and the rest
  computed. Pages lie scattered in every tier. What came back is compared byte for byte.
* choices: two such prompts take turns in an engine whose L1 (and L2) holds only one. Which side
  does the policy `cost` take in the end, and is it the faster one of the table?
* rotating: eight prompts, over and over, all waiting from the start; `cost` against the better of
  `always` and `never`, by the time that the last requests took.

The cost model's priors are the best rates of the table: while sizes hardly vary it learns what
comes on top of them, and cannot learn that a device is faster than it had believed ("mixed" shows
what it does with its own priors, when the lengths take turns). Parts that the budget leaves no time
for are listed as skipped.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from restore_policies import (
    GIB,
    TIERS,
    Bench,
    choose,
    choose_mixed,
    rotate,
    store_of,
)  # fmt: skip
from restore_rig import Rig, median_s, scattered  # before Triton is imported

# isort: split
import torch

LENGTHS = (350, 1000, 2000, 3500, 8000, 16000)
TINY = {
    "model_type": "qwen3", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 97,
    "max_position_embeddings": 4096, "tie_word_embeddings": False, "torch_dtype": "float32",
}  # fmt: skip
# Table ------------------------------------------------------------------------------------------


def measure_row(bench: Bench, tokens: int) -> dict[str, Any]:
    """One length: seconds of each way to the first token."""
    rig, hit = bench.rig, bench.hit_pages(tokens)
    times = 5 if tokens < 5000 else 3
    of = rig.pages
    table = scattered(bench.pages(tokens), tokens, of)
    here, there, slots = table[:hit], scattered(hit, 1, of), scattered(hit, 2, of)
    request = bench.request(tokens, tokens, tokens)
    row: dict[str, Any] = {
        "tokens": tokens, "hit_tokens": hit * rig.page_tokens, "bytes": hit * rig.page_bytes,
        "recompute_s": median_s(lambda: rig.prefill_s(request, 0, table), times),
    }  # fmt: skip
    rig.copy_s("auto", "d2h", here, there)
    wanted = [rig.host.data[page].clone() for page, _ in there]
    copies = {
        name: median_s(lambda name=name: rig.copy_s(name, "h2d", there, here), times)
        for name in rig.backends
    }
    row["copy_s"] = copies
    row["rest_s"] = median_s(lambda: rig.prefill_s(request, hit * rig.page_tokens, table), times)
    reads: dict[str, float] = {}
    for store in rig.stores:
        rig.write_s(store, there, slots)
    reads["cold"] = median_s(lambda: rig.read_s("cold", slots, there), times)
    few = 3 if tokens < 5000 else 1
    reads["dropped"] = statistics.median(dropped_s(rig, slots, there) for _ in range(few))
    reads["warm"] = median_s(lambda: rig.read_s("warm", slots, there), times)
    row["read_s"] = reads
    # Through the file and back: the bytes are those that were computed.
    rig.clear()
    rig.read_s("warm", slots, there)
    rig.copy_s("auto", "h2d", there, here)
    rig.host.data.zero_()
    rig.copy_s("auto", "d2h", here, there)
    for (page, _), content in zip(there, wanted, strict=True):
        assert torch.equal(rig.host.data[page], content), f"{tokens} tokens: other bytes"
    return row


def dropped_s(rig: Rig, slots: Any, pages: Any) -> float:
    """Seconds of a read through a page cache that holds nothing of the file."""
    rig.drop("warm")
    return rig.read_s("warm", slots, pages)


def priors(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """The best rates of the table as a cost model's priors, by tier."""
    made: dict[str, dict[str, float]] = {}
    for tier in TIERS:
        store = store_of(tier)
        made[tier] = {
            "prior_recompute_us_per_token": min(r["recompute_s"] / r["tokens"] for r in rows) * 1e6,
            "prior_host_gib_per_s": max(r["bytes"] / r["copy_s"]["auto"] for r in rows) / GIB,
            "prior_storage_gib_per_s": max(r["bytes"] / r["read_s"][store] for r in rows) / GIB,
        }
    return made


# Print ------------------------------------------------------------------------------------------


def show(bench: Bench) -> None:
    """The tables, for people."""
    print("tokens  recompute   L2    direct  staged  | rest   | L3 cold  dropped    warm   ms")
    for row in bench.rows:
        copies, reads = row["copy_s"], row["read_s"]
        print(
            f"{row['tokens']:6} {row['recompute_s'] * 1e3:9.2f} "
            + " ".join(f"{copies[name] * 1e3:7.2f}" for name in ("auto", "direct", "staged"))
            + f" | {row['rest_s'] * 1e3:6.2f} | "
            + " ".join(f"{reads[name] * 1e3:8.2f}" for name in ("cold", "dropped", "warm"))
        )
    for name, choices in (("choice", bench.choices), ("mixed", bench.mixed)):
        for each in choices:
            print(
                f"{name} {each['tokens']:6} {each['tier']:8} recompute "
                f"{each['recompute_s'] * 1e3:7.1f} restore {each['restore_s'] * 1e3:7.1f} ms: "
                f"{each['chosen']:9} {'RIGHT' if each['right'] else 'WRONG'} "
                f"after {each['choices_until_right']} of {len(each['reasons'])}"
            )
    for each in bench.rotating:
        print(
            f"rotating {each['tokens']} {each['tier']:8} "
            + " ".join(f"{p} {s:.3f}" for p, s in each["seconds"].items())
            + f" s, loss {each['loss']:+.1%} {'HOLDS' if each['holds'] else 'MISSED'}"
        )
    for line in bench.skipped:
        print("skipped:", line)


def measure(bench: Bench, rotating: tuple[tuple[int, int, int], ...], rounds: int) -> None:
    """All parts, the ones that something is claimed of first. `rotating`: tokens, turns and passes;
    `rounds`: of mixed lengths.
    """
    for tokens in bench.lengths:
        bench.rows.append(measure_row(bench, tokens))
    known = priors(bench.rows)
    for tier in bench.tiers:
        for row in bench.rows:
            choose(bench, row, tier, known[tier])
    by_length = {row["tokens"]: row for row in bench.rows}
    for tokens, turns, passes in rotating:
        for tier in bench.tiers:
            rotate(bench, by_length[tokens], tier, turns, passes, known[tier])
    for tier in bench.tiers:
        choose_mixed(bench, tier, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a few tokens of a tiny model")
    parser.add_argument("--model", default="Qwen3-8B")
    parser.add_argument("--page-tokens", type=int, default=64)
    parser.add_argument("--chunk-tokens", type=int, default=8192)
    parser.add_argument("--budget", type=float, default=125, help="seconds")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--out", type=Path, help="JSON of everything")
    arguments = parser.parse_args()
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="restore-") as name:
        folder = Path(name)
        model, lengths, page, chunk = (
            arguments.model, LENGTHS, arguments.page_tokens, arguments.chunk_tokens
        )  # fmt: skip
        if arguments.tiny:
            model, lengths, page, chunk = str(folder / "config.json"), (14, 30), 4, 16
            Path(model).write_text(json.dumps(TINY))
        tiers = TIERS
        turns, prefixes, rounds, rotating = 11, 8, 6, ((350, 96, 2), (1000, 32, 1))
        if arguments.tiny:
            tiers = ("L3 cold",)
            turns, prefixes, rounds, rotating = 2, 3, 2, ((lengths[0], 4, 1),)
        longest = max(tokens for tokens, *_ in rotating)
        longest = max(2 * max(lengths), sum(lengths), (prefixes + 1) * longest)
        pages = -(-longest // page) + 2 * (prefixes + 1)
        rig = Rig(model, arguments.device, page, pages, chunk, folder)
        bench = Bench(rig, lengths, tiers, arguments.budget, begun_s, turns, prefixes)
        made_s = time.monotonic() - begun_s
        measure(bench, rotating, rounds)
        rig.close()
    show(bench)
    wall_s = time.monotonic() - begun_s
    print(f"{made_s:.0f} s to make the model, {wall_s:.0f} s in all")
    if arguments.out:
        result = {
            "command": " ".join(["python", *sys.argv]), "date": f"{datetime.now(UTC):%Y-%m-%d}",
            **rig.about, "python": platform.python_version(), "torch": torch.__version__,
            "rows": bench.rows, "priors": priors(bench.rows), "choices": bench.choices,
            "mixed": bench.mixed, "rotating": bench.rotating, "skipped": bench.skipped,
            "wall_s": wall_s,
        }  # fmt: skip
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
