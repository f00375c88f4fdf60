"""Runs the validation scenarios on a GPU, each twice, the model made once, and keeps their records.

    python benchmarks/validation/record.py --out OUT                              all of them
    python benchmarks/validation/record.py --out OUT --budget-s 560 conversation-l2 shared-l3

    OUT/traces             the traces, so that OUT can be moved to anywhere
    OUT/NAME/hw-1, hw-2    scenario.toml, summary.json, completions.jsonl.gz: what
                           hicache validate --runs OUT/NAME/hw-1 --runs OUT/NAME/hw-2 reads

A scenario that would begin after `--budget-s` is left out and named, exit code 1 then; so that what
was done comes back in any case. Every run's line says how long it took with its preparation.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import sys
import time
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from calibrate.validate.hardware import Measured, ModelKeeper, measure
from hicache.errors import DeviceError, InputError
from hw.assembly import DeviceName
from scenario.load import load_scenario, parse_assignments
from scenario.records import dump_toml
from scenario.results import summary_text

HERE = Path(__file__).resolve().parent
RUNS = 2


def keep(out: Path, name: str, measured: Measured) -> None:
    """Write what `hicache validate --runs` needs, small, to OUT/`name`."""
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    outcome = measured.outcome
    trace = Path(measured.scenario.trace.path)
    (out / "traces").mkdir(exist_ok=True)
    shutil.copyfile(trace, out / "traces" / trace.name)
    beside = "../" * (1 + name.count("/")) + f"traces/{trace.name}"
    moved = msgspec.structs.replace(measured.scenario.trace, path=beside)
    scenario = msgspec.structs.replace(measured.scenario, trace=moved)
    (folder / "scenario.toml").write_text(dump_toml(scenario))
    (folder / "summary.json").write_text(summary_text(outcome.summary))
    with gzip.GzipFile(folder / "completions.jsonl.gz", "wb", mtime=0) as packed:
        packed.write(outcome.extras["completions.jsonl"].encode())


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("names", nargs="*", help="scenarios beside this file; all of them")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--budget-s", type=float, default=560.0)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="given")
    options = parser.parse_args()
    device: DeviceName = options.device
    names = options.names or sorted(path.stem for path in HERE.glob("*.toml"))
    began_s = time.monotonic()
    keeper, longest_s, failed = ModelKeeper(), 0.0, 0
    for name in names:
        # A scenario takes about as long as the longest before it.
        if time.monotonic() - began_s + longest_s > options.budget_s:
            print(f"{name}: left out, the budget of {options.budget_s:g} s is spent")
            failed += 1
            continue
        first_s = time.monotonic()
        try:
            scenario = load_scenario(HERE / f"{name}.toml", parse_assignments(options.given))
            for number in range(1, RUNS + 1):
                start_s = time.monotonic()
                measured = measure(
                    scenario, device=device, keeper=keeper, tell=lambda line: print(f"  {line}")
                )
                keep(options.out, f"{name}/hw-{number}", measured)
                print(line(name, number, measured, time.monotonic() - start_s), flush=True)
        except (InputError, DeviceError) as error:
            print(f"{name}: error: {error}", flush=True)
            failed += 1
        longest_s = max(longest_s, time.monotonic() - first_s)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "recorded.json").write_text(
        json.dumps(
            {
                "command": " ".join(("python", "benchmarks/validation/record.py", *sys.argv[1:])),
                "scenarios": names,
            },
            indent=1,
        )
        + "\n"
    )
    return 1 if failed else 0


def line(name: str, number: int, measured: Measured, took_s: float) -> str:
    """One run in a line."""
    summary: dict[str, object] = json.loads(summary_text(measured.outcome.summary))
    ttft, rate = summary["ttft_ms"], summary["throughput"]
    assert isinstance(ttft, dict)
    assert isinstance(rate, dict)
    return (
        f"{name} {number}: {took_s:.1f} s, of it the run {rate['duration_s']:.1f} s; "
        f"TTFT mean {ttft['mean']:.1f} p50 {ttft['p50']:.1f} p99 {ttft['p99']:.1f} ms, "
        f"{rate['requests_per_s']:.3f} requests/s, tokens {summary['cached_tokens_total']}, "
        f"computed {summary['computed_tokens']}"
    )


if __name__ == "__main__":
    sys.exit(main())
