"""Where a replay's time goes, by function and by module (cProfile).

    python benchmarks/profile_replay.py [TRACE] [--set KEY=VALUE ...] [--top 25]

The profiler costs each call the same, so that small functions look more expensive than they are:
shares say where to look, `replay_speed.py` says what it brought. Starting Python, reading options
and writing the result are not in it. It is always the sources that run, never the compiled engine,
whose functions a profiler does not see.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from bench_inputs import CONVERSATION, REPOSITORY, SHIPPED_TRACE

os.environ["HICACHE_COMPILED"] = "0"

from scenario.load import load_scenario, parse_assignments
from sim.replay import prepare


def main(arguments: Sequence[str] | None = None) -> None:
    """Profile one replay and print two tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument(
        "trace", nargs="?", type=Path,
        default=CONVERSATION if CONVERSATION.exists() else SHIPPED_TRACE,
    )  # fmt: skip
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="assignments",
        help="any key of docs/scenario.md, as in --set tiers.page_size_tokens=1",
    )  # fmt: skip
    parser.add_argument("--top", type=int, default=25, help="functions shown (default 25)")
    options = parser.parse_args(arguments)
    overrides = {"tiers.l3": "10x", **parse_assignments(options.assignments)}
    run = prepare(load_scenario(None, {**overrides, "trace.path": str(options.trace)}))
    profiler = cProfile.Profile()
    profiler.enable()
    run.execute()
    run.outcome()
    profiler.disable()
    print(tables(pstats.Stats(profiler), options.top))


def tables(stats: pstats.Stats, top: int) -> str:
    """Own time by function, the most expensive first, and by module."""
    rows = []
    by_module: Counter[str] = Counter()
    for (file, line, name), (_, calls, own_s, with_callees_s, _) in stats.stats.items():  # type: ignore[attr-defined]
        module = _module(file)
        by_module[module] += own_s
        where = f"{module}:{line} {name}" if line else name
        rows.append((own_s, with_callees_s, calls, where))
    total_s = sum(by_module.values())
    lines = [f"{total_s:.2f} s under the profiler", ""]
    lines += ["| own s | share | with callees s | calls | function |", "|---:|---:|---:|---:|---|"]
    for own_s, with_callees_s, calls, where in sorted(rows, reverse=True)[:top]:
        share = 100 * own_s / total_s
        lines.append(
            f"| {own_s:.3f} | {share:.1f} % | {with_callees_s:.3f} | {calls:,} | {where} |"
        )
    lines += ["", "| own s | share | module |", "|---:|---:|---|"]
    for module, own_s in by_module.most_common(15):
        lines.append(f"| {own_s:.3f} | {100 * own_s / total_s:.1f} % | {module} |")
    return "\n".join(lines)


def _module(file: str) -> str:
    if file.startswith("~"):
        return "built-in"
    path = Path(file)
    if path.is_relative_to(REPOSITORY) and "site-packages" not in path.parts:
        return str(path.relative_to(REPOSITORY))
    return "/".join(path.parts[-2:])


if __name__ == "__main__":
    sys.exit(main())
