"""How much of a load hides under computing in whole runs: `restore.layerwise` off and on.

    python benchmarks/hw/layerwise_runs.py [--transfers auto] [--out layerwise_runs.json]

One engine, one model, one request at a time: prompts of a few lengths are computed, and then asked
for again in turn, with something new behind them. L1 holds little more than one of them, so that
each is loaded, all of it. Both runs are recorded, and taken from their records:

    off   load L, then compute C                      load  |-----|
    on    from the load's begin to the step's end, T  step  |--------|   or   |-----------|

    hidden = (L + C - T) / min(L, C)          1: all that can hide does; 0: nothing does

Steps of up to 1,024 tokens run as CUDA graphs, those that wait for layers in parts and up to 2,048
tokens (`hw.model.graphs`). What a graph saves is not hidden: here the longer ones are graphs in
"off", too, though they are not in a run. `--without-graphs` adds a third run in which what waits
for layers has no graph: what it loses by that counts against it. All records are replayed. About a
minute on an H200, half a minute more with the third run. Target: 0.8, and TTFT not above what it is
without. Exit code 1: some case missed it.

--device cpu --model CONFIG: on the CPU and Triton's interpreter, to see that it works at all.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import hw  # noqa: F401  # before Triton is imported

# isort: split
from hicache.operations import Copy, Prefill
from hicache.record import Record
from hw.model import device
from hw.model.device import ModelDevice
from hw.model.graphs import Buckets
from hw.run import run_scenario
from scenario.load import load_scenario
from sim.replay import replay

TARGET = 0.8
BLOCK = 512
PREFIXES = (14336, 14336, 4096)  # each pushes all others out of L1 before it is asked for again
SUFFIXES = (128, 512, 2048)
CHUNK_BLOCKS = 32
TIMES = 4
GAP_MS, FIRST_GAP_MS = 350, 1500
# begun_ms: from the load's begin to the step's, part of together_ms.
COLUMNS = (
    "load_ms", "compute_ms", "begun_ms", "together_ms", "ttft_off_ms", "ttft_on_ms", "hidden"
)  # fmt: skip


def write_trace(path: Path, unit: int, times: int) -> list[tuple[int, int]]:
    """Requests of Mooncake's form with blocks of `unit` tokens; (prefix, suffix) of each, in
    tokens, behind the first ones.
    """
    block, now, lines = 0, 0, []

    def ask(blocks: list[int], length: int, gap_ms: int) -> None:
        nonlocal now
        row = {"timestamp": now, "input_length": length, "output_length": 1, "hash_ids": blocks}
        lines.append(json.dumps(row))
        now += gap_ms

    def new(tokens: int) -> list[int]:
        nonlocal block
        count = -(-tokens // unit)
        block += count
        return list(range(block - count, block))

    prefixes = [prefix * unit // BLOCK for prefix in PREFIXES]
    known = [new(prefix) for prefix in prefixes]
    for blocks, prefix in zip(known, prefixes, strict=True):
        ask(blocks, prefix, FIRST_GAP_MS)
    cases: list[tuple[int, int]] = []
    for _ in range(times):
        for each in SUFFIXES:
            suffix = each * unit // BLOCK
            for blocks, prefix in zip(known, prefixes, strict=True):
                ask([*blocks, *new(suffix)], prefix + suffix, GAP_MS)
                cases.append((prefix, suffix))
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
            "tiers.l1": f"{33 * 8}pages",
            "tiers.l2": f"{90 * 8}pages",
            "tiers.l3": "0",
            "restore.policy": "always",
            "restore.layerwise": layerwise != "off",
            "scheduler.chunk_tokens": CHUNK_BLOCKS * unit,
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
    graphs = "whole" if layerwise == "without_graphs" else "auto"
    buckets = Buckets().waiting(CHUNK_BLOCKS * unit) if layerwise == "off" else Buckets()
    made = partial(ModelDevice, graphs=graphs, buckets=buckets)
    with patch.object(device, "ModelDevice", made):
        done = run_scenario(scenario, device=arguments.device)
    lines = done.extras["completions.jsonl"].splitlines()
    path = folder / f"{layerwise}.toml"
    path.write_text(done.scenario_text, encoding="utf-8")
    again = replay(load_scenario(path), replay_of=Record(lines))
    for name, values in again.columns.items():
        assert list(values) == list(done.columns[name]), f"the record does not repeat {name}"
    ttft = list(done.columns["ttft_ns"])
    return [
        (load, step, ttft[len(PREFIXES) + place])
        for place, (load, step) in enumerate(loads_and_steps(Record(lines)))
    ]


def compared(
    cases: list[tuple[int, int]], times: int, page_tokens: int, off: list, on: list
) -> list[dict]:
    """What each case took, by the runs' records: COLUMNS, medians and all, and targets missed."""
    assert len(off) == len(on) == len(cases), (len(off), len(on), len(cases))
    rows: dict[tuple[int, int], list[tuple[float, ...]]] = {}
    for case, (load, step, ttft_off), (early, over, ttft_on) in zip(cases, off, on, strict=True):
        # Of an ending: number 1, operation 2, submitted 3, started 4, finished 5.
        assert over[2].load == early[1], "a prefill did not overlap with its load"
        for each in (load, early):
            pages = sum(count for _, count in each[2].source)
            assert pages * page_tokens == case[0], "a prefix was not loaded as a whole"
        loaded, computed = load[5] - load[4], step[5] - step[4]
        took = over[5] - early[4]
        hidden = (loaded + computed - took) / min(loaded, computed)
        all_ns = (loaded, computed, over[4] - early[4], took, ttft_off, ttft_on)
        rows.setdefault(case, []).append((*(each / 1e6 for each in all_ns), hidden))
    table = []
    for (prefix, suffix), values in sorted(rows.items()):
        firsts = len(values) // times  # of each case, as many as there are such prefixes
        middle = [statistics.median(column) for column in zip(*values[firsts:], strict=True)]
        missed = [
            name
            for name, is_missed in (
                ("hidden", middle[-1] < TARGET), ("ttft", middle[5] > middle[4]),
            )
            if is_missed
        ]  # fmt: skip
        table.append(
            {"prefix": prefix, "suffix": suffix, "median": middle, "missed": missed, "all": values}
        )
    return table


def show(name: str, table: list[dict]) -> None:
    """A line for each case."""
    print(f"\n{name}\n prefix  suffix    load ms  compute ms    begun ms  together ms  TTFT off ms"
          "  TTFT on ms  hidden")  # fmt: skip
    for row in table:
        *times, hidden = row["median"]
        print(
            f"{row['prefix']:7} {row['suffix']:7} "
            + "".join(f"{each:11.2f} " for each in times)
            + f"{hidden:7.2f}  {', '.join(row['missed'])}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description="layer-wise loads in whole runs")
    parser.add_argument("--model", default="Qwen3-8B")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--transfers", default="auto")
    parser.add_argument("--times", type=int, default=TIMES, help="each case, the first not counted")
    parser.add_argument("--without-graphs", action="store_true", help="a third run, as above")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.times < 2:
        parser.error(f"--times is {arguments.times}: the first is not counted, so at least 2")
    unit = 8 if arguments.device == "cpu" else BLOCK
    names = ["on", *(["without_graphs"] if arguments.without_graphs else [])]
    tables = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cases = write_trace(folder / "trace.jsonl", unit, arguments.times)
        off = run(folder, unit, arguments, "off")
        for each in names:
            on = run(folder, unit, arguments, each)
            tables[each] = compared(cases, arguments.times, unit // 8, off, on)
    for each, table in tables.items():
        show(each, table)
    if arguments.out:
        found = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": "python " + " ".join(["benchmarks/hw/layerwise_runs.py", *sys.argv[1:]]),
            "columns": COLUMNS,
            "target": TARGET,
            "rows": tables["on"],
        }
        if "without_graphs" in tables:
            found["rows_without_graphs"] = tables["without_graphs"]
        arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return int(any(row["missed"] for row in tables["on"]))


if __name__ == "__main__":
    sys.exit(main())
