"""How much of a scenario's TTFT is the disk's: simulations with its read rates changed.

    python benchmarks/validation/disk.py                                those with an L3
    python benchmarks/validation/disk.py multi-turn-l3 --by 1.15 1.3 --set load.parallel=4
    python benchmarks/validation/disk.py results/h200-2026-11-30-1339/shared-l3/hw-1/scenario

A virtual machine's disk is another one after each start. Each line is a scenario on a machine whose
disk reads so many times as fast as the profile says, latency included, with what TTFT and
throughput are then against the profile's own, in percent, and which prompt tokens came from where.
Whoever predicts with a profile of another start is off by as much, and no fit can help it. Pages
are named, as in a run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from calibrate.validate.validation import as_the_machine_did
from hicache.errors import HiCacheError, InputError
from scenario.load import load_scenario, parse_assignments
from scenario.profile import Profile, dump_profile, load_profile
from scenario.records import Scenario
from sim.replay import replay

HERE = Path(__file__).resolve().parent
USUAL = (1 / 1.15, 1.15)
TTFT = ("mean", "p90", "p99")
SOURCES = ("device", "host", "storage")


def as_a_run(name: str, given: dict[str, object]) -> Scenario:
    """The scenario NAME.toml beside this file as a run on hardware plays it, its pages named.
    Raises InputError.
    """
    path = HERE / f"{name}.toml"
    return as_the_machine_did(load_scenario(path, {"engine.page_ids": "named", **given}))


def with_reads(profile: Profile, factor: float) -> Profile:
    """`profile` on a disk that reads `factor` times as fast, the latency included."""
    disk = profile.disk
    rates = tuple(
        (block, at_once, max(1, round(rate * factor)))
        for block, at_once, rate in disk.read_bytes_per_s.points
    )
    latency = msgspec.structs.replace(
        disk.read_latency_ns, value=round(disk.read_latency_ns.value / factor)
    )
    changed = msgspec.structs.replace(
        disk,
        read_bytes_per_s=msgspec.structs.replace(disk.read_bytes_per_s, points=rates),
        read_latency_ns=latency,
    )
    return msgspec.structs.replace(profile, disk=changed)


def summary_at(scenario: Scenario, factor: float) -> dict[str, Any]:
    """The summary of a simulation with reads `factor` times as fast. Raises HiCacheError."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "profile.json"
        file.write_text(dump_profile(with_reads(load_profile(scenario.machine.profile), factor)))
        machine = msgspec.structs.replace(scenario.machine, profile=str(file))
        return replay(msgspec.structs.replace(scenario, machine=machine)).summary


def row(name: str, factor: float, summary: dict[str, Any], usual: dict[str, Any]) -> str:
    """One line of the table: values, in brackets what they differ in from `usual`, in percent."""
    cells = [name, f"{factor:.3f}"]
    for each in TTFT:
        value, at_one = summary["ttft_ms"][each], usual["ttft_ms"][each]
        cells.append(f"{value:.1f} ({100 * (value / at_one - 1):+.1f})")
    rate, at_one = (which["throughput"]["requests_per_s"] for which in (summary, usual))
    cells.append(f"{rate:.3f} ({100 * (rate / at_one - 1):+.1f})")
    tokens, prompts = summary["cached_tokens_total"], summary["prompt_tokens"]
    cells.append(", ".join(f"{100 * tokens[tier] / prompts:.2f}" for tier in SOURCES))
    cells.append(f"{summary['throughput']['duration_s']:.1f}")
    return f"| {' | '.join(cells)} |"


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("names", nargs="*", help="scenarios beside this file; those with an L3")
    parser.add_argument("--by", nargs="+", type=float, default=list(USUAL), metavar="FACTOR")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="given")
    options = parser.parse_args()
    names = options.names or sorted(path.stem for path in HERE.glob("*-l3.toml"))
    print("| | disk | TTFT mean, ms | p90 | p99 | requests/s | L1, L2, L3, % of tokens | s |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    try:
        if any(not factor > 0 for factor in options.by):
            raise InputError(f"--by {min(options.by):g}: it must be greater than 0")
        for name in names:
            scenario = as_a_run(name, parse_assignments(options.given))
            usual = summary_at(scenario, 1.0)
            for factor in sorted({1.0, *options.by}):
                summary = usual if factor == 1.0 else summary_at(scenario, factor)
                print(row(name, factor, summary, usual), flush=True)
    except HiCacheError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
