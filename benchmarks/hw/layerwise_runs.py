"""How much of a load hides under computing in whole runs: `restore.layerwise` off and on.

    python benchmarks/hw/layerwise_runs.py [--transfers auto] [--out layerwise_runs.json]

One engine, one model, one request at a time: a prompt is computed, another one pushes it out of
L1, and then it is asked for again with something new behind it. Both runs are recorded, and taken
from their records:

    off   load L, then compute C                      load  |-----|
    on    from the load's begin to the step's end, T  step  |--------|   or   |-----------|

    hidden = (L + C - T) / min(L, C)          1: all that can hide does; 0: nothing does

T has the launches of a prefill without a graph in it, C those of one with a graph where there is
one (`hw.model.graphs`): what short prompts lose by that counts against the option, as it does in a
run. Both records are replayed. About 5 minutes on an H200. Target: 0.8. Exit code 1: some case
missed it.

--device cpu --model CONFIG: on the CPU and Triton's interpreter, to see that it works at all.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import hw  # noqa: F401  # before Triton is imported

# isort: split
from hicache.operations import Copy, Prefill
from hicache.record import Record
from hw.run import run_scenario
from scenario.load import load_scenario
from sim.replay import replay

TARGET = 0.8
BLOCK = 512
PREFIXES = (4096, 14336)
SUFFIXES = (512, 2048, 4096)
TIMES = 3
GAP_MS = 1500


def write_trace(path: Path, unit: int, gap_ms: int, times: int) -> list[tuple[int, int]]:
    """Requests of Mooncake's form with blocks of `unit` tokens; (prefix, suffix) of each third
    one, in blocks.
    """
    cases = [
        (prefix // BLOCK, suffix // BLOCK)
        for _ in range(times)
        for prefix in PREFIXES
        for suffix in SUFFIXES
    ]
    block, now, lines = 0, 0, []

    def ask(blocks: list[int]) -> None:
        nonlocal now
        length = len(blocks) * unit
        row = {"timestamp": now, "input_length": length, "output_length": 1, "hash_ids": blocks}
        lines.append(json.dumps(row))
        now += gap_ms

    def new(count: int) -> list[int]:
        nonlocal block
        block += count
        return list(range(block - count, block))

    for prefix, suffix in cases:
        known = new(prefix)
        ask(known)
        ask(new(39))  # nearly all of L1
        ask(known + new(suffix))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return cases


def scenario_of(folder: Path, unit: int, arguments: argparse.Namespace, layerwise: str):
    return load_scenario(
        None,
        {
            "trace.path": str(folder / "trace.jsonl"),
            "trace.block_tokens": unit,
            "model.name": arguments.model,
            "tiers.page_size_tokens": unit // 8,
            "tiers.l1": f"{40 * 8}pages",
            "tiers.l2": f"{90 * 8}pages",
            "tiers.l3": "0",
            "restore.policy": "always",
            "restore.layerwise": layerwise == "on",
            "scheduler.chunk_tokens": max(SUFFIXES) // BLOCK * 4 * unit,
            "scheduler.max_running_requests": 4,
            "hw.transfers": arguments.transfers,
        },
    )


def loads_and_steps(record: Record) -> list[tuple[list, list]]:
    """The endings of each h2d copy and of the first prefill behind it."""
    found: list[tuple[list, list]] = []
    load = None
    for number in sorted(record.endings):
        ending = record.endings[number]
        operation = ending[2]
        if isinstance(operation, Copy) and operation.direction == "h2d":
            load = ending
        elif isinstance(operation, Prefill) and load is not None:
            found.append((load, ending))
            load = None
    return found


def run(folder: Path, unit: int, arguments: argparse.Namespace, layerwise: str) -> list:
    scenario = scenario_of(folder, unit, arguments, layerwise)
    done = run_scenario(scenario, device=arguments.device)
    lines = done.extras["completions.jsonl"].splitlines()
    path = folder / f"{layerwise}.toml"
    path.write_text(done.scenario_text, encoding="utf-8")
    again = replay(load_scenario(path), replay_of=Record(lines))
    for name, values in again.columns.items():
        assert list(values) == list(done.columns[name]), f"the record does not repeat {name}"
    ttft = list(done.columns["ttft_ns"])
    return [
        (load, step, ttft[3 * place + 2])
        for place, (load, step) in enumerate(loads_and_steps(Record(lines)))
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="layer-wise loads in whole runs")
    parser.add_argument("--model", default="Qwen3-8B")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--transfers", default="auto")
    parser.add_argument("--times", type=int, default=TIMES, help="each case, the first not counted")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.times < 2:
        parser.error(f"--times is {arguments.times}: the first is not counted, so at least 2")
    small = arguments.device == "cpu"
    unit = 8 if small else BLOCK
    rows: dict[tuple[int, int], list[tuple[float, ...]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        gap_ms = 400 if small else GAP_MS
        cases = write_trace(folder / "trace.jsonl", unit, gap_ms, arguments.times)
        off = run(folder, unit, arguments, "off")
        on = run(folder, unit, arguments, "on")
    assert len(off) == len(on) == len(cases), (len(off), len(on), len(cases))
    for (prefix, suffix), (load, step, ttft_off), (early, over, ttft_on) in zip(
        cases, off, on, strict=True
    ):
        # Of an ending: number 1, operation 2, submitted 3, started 4, finished 5.
        assert over[2].load == early[1], "a prefill did not overlap with its load"
        loaded, computed = load[5] - load[4], step[5] - step[4]
        took = over[5] - early[4]
        hidden = (loaded + computed - took) / min(loaded, computed)
        times = (loaded, computed, took, ttft_off, ttft_on)
        rows.setdefault((prefix * unit, suffix * unit), []).append(
            (*(each / 1e6 for each in times), hidden)
        )
    print(" prefix  suffix    load ms  compute ms  together ms  TTFT off ms  TTFT on ms  hidden")
    table, missed = [], 0
    for (prefix, suffix), values in rows.items():
        middle = [statistics.median(column) for column in zip(*values[1:], strict=True)]
        missed += middle[-1] < TARGET
        print(
            f"{prefix:7} {suffix:7} "
            + "".join(f"{each:11.2f} " for each in middle[:-1])
            + f"{middle[-1]:7.2f}"
        )
        table.append({"prefix": prefix, "suffix": suffix, "median": middle, "all": values})
    if arguments.out:
        found = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": "python " + " ".join(["benchmarks/hw/layerwise_runs.py", *sys.argv[1:]]),
            "columns": ["load_ms", "compute_ms", "together_ms", "ttft_off_ms", "ttft_on_ms",
                        "hidden"],
            "target": TARGET,
            "rows": table,
        }  # fmt: skip
        arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
