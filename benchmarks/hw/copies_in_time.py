"""Why a copy of small pages takes another time than its neighbours by size: time, lists or the way?

    python benchmarks/hw/copies_in_time.py --out copies_in_time.json          a GPU, some 60 s
    python benchmarks/hw/copies_in_time.py --small --out FILE                 the CPU, to try it out

    traces    one copy again and again for seconds: does its time stay the same?
    lists     several lists of pages, each timed in rounds: do lists differ, or rounds?
    ways      a run of pages by `direct`, page by page and layer by layer: where do they cross?
    visits    what `calibrate` makes of these copies with one visit to each point, and with three

Pages of 16 and of one token, Qwen3-8B. `--flag FILE` is made when the traces are done, so that a
script can begin with other work that should not disturb them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import hw  # noqa: F401  # before Triton is imported

# isort: split
import torch

from calibrate.build import Told, build_profile
from calibrate.journal import Journal
from calibrate.points import Point
from calibrate.probes.bench import CPU_SCALE, Bench
from calibrate.probes.transfers import WAYS, TransfersProbe
from calibrate.session import Session
from hicache.allocator import extents
from hicache.operations import Copy
from hw.device import Control
from hw.transfers.device import TransferDevice
from hw.transfers.direct import Direct
from hw.transfers.lists import Extent
from hw.transfers.queues import Rows
from scenario.geometry import load_geometry
from scenario.measurement import Measurement
from scenario.profile import load_profile

# (series, pages): points that differed from their neighbours on 2026-11-30, and a plain copy.
TRACED = (
    ("pcie.direct.h2d.run.16", 8), ("pcie.direct.d2h.scattered.1", 64),
    ("pcie.zero_copy.h2d.scattered.1", 32), ("pcie.direct.h2d.scattered.16", 16),
)  # fmt: skip
LISTED = (
    ("pcie.direct.d2h.scattered.1", 256), ("pcie.direct.h2d.scattered.16", 16),
    ("pcie.zero_copy.h2d.scattered.1", 512), ("pcie.direct.h2d.run.16", 8),
)  # fmt: skip
RUNS = (8, 16, 24, 32, 36, 48, 64)


class Chosen(TransfersProbe):
    """The probe with the other sizes of pages alone. `visits`: of each point."""

    visits = 1

    @property
    def names(self) -> tuple[str, ...]:
        return self._names

    def points(self, effort):
        return [
            each._replace(visits=self.visits)
            for each in super().points(effort)
            if each.series.endswith((".1", ".16"))
        ]

    def open(self) -> None:
        """The pools of these pages are made when they are first needed."""


class OneWay(Direct):
    """`direct` that copies every run page by page, or layer by layer."""

    by_layer = False

    def rows_of(self, extent: Extent, part: int, first: int, count: int) -> list[Rows]:
        if not self.by_layer:
            return [
                row
                for page in range(extent.pages)
                for row in super(OneWay, self).rows_of(
                    Extent(extent.device + page, extent.host + page, 1), part, first, count
                )
            ]
        one = [super(OneWay, self).rows_of(extent._replace(pages=1), part, first + layer, 1)
               for layer in range(count)]  # fmt: skip
        width, page_bytes = self.layout.piece_bytes(part), self.host_pool.page_bytes
        return [
            rows[0]._replace(device_pitch=width, host_pitch=page_bytes, height=extent.pages)
            for rows in one
        ]


def chosen(bench: Bench) -> Chosen:
    # An interpreted kernel takes seconds.
    names = ("direct",) if bench.where.type == "cpu" else ("zero_copy", "direct")
    return Chosen(bench, backends=names, other_pages=(1, 16))


def trace(act: Callable[[], int], seconds: float) -> dict[str, list[int]]:
    """When each call began, in us from the first, and what it took, in ns."""
    begun, took = [], []
    start_ns = time.monotonic_ns()
    while time.monotonic_ns() - start_ns < seconds * 1e9:
        begun.append((time.monotonic_ns() - start_ns) // 1000)
        took.append(act())
    return {"at_us": begun, "ns": took}


def traces(probe: Chosen, sizes: dict[int, int], seconds: float) -> list[dict[str, Any]]:
    found = []
    for series, pages in TRACED:
        if series.split(".")[1] not in probe.names:
            continue
        act = probe.sampler(Point(series, (pages * sizes[tokens_of(series)],)))
        for _ in range(3):
            act()
        found.append({"series": series, "pages": pages, **trace(act, seconds)})
        took = sorted(found[-1]["ns"])
        spread = [took[len(took) * part // 100] / 1000 for part in (5, 50, 95)]
        # Medians of a tenth of a second each: what a point of six samples may see.
        parts: dict[int, list[int]] = {}
        for at, ns in zip(found[-1]["at_us"], found[-1]["ns"], strict=True):
            parts.setdefault(at // 100_000, []).append(ns)
        medians = [round(statistics.median(each) / 1000, 1) for each in parts.values()]
        print(f"{series} {pages}: us 5/50/95 % {spread}; by 0.1 s: {medians}", flush=True)

        def after_idle(act: Callable[[], int] = act) -> int:
            time.sleep(0.005)
            return act()

        idle = trace(after_idle, seconds / 4)["ns"]
        print(f"    5 ms idle before each: median {statistics.median(idle) / 1000:.1f}", flush=True)
        found[-1]["after_idle_ns"] = idle
    return found


def lists(probe: Chosen, sizes: dict[int, int], rounds: int, pause_s: float) -> list[dict]:
    """Medians of four calls: a row for each list, a column for each round."""
    acts = {
        (series, pages): [
            probe.sampler(Point(series, (pages * sizes[tokens_of(series)],))) for _ in range(5)
        ]
        for series, pages in LISTED
        if series.split(".")[1] in probe.names
    }
    table: dict[tuple[str, int], list[list[float]]] = {key: [[] for _ in range(5)] for key in acts}
    for _ in range(rounds):
        for key, mine in acts.items():
            for place, act in enumerate(mine):
                act()
                took = statistics.median(act() for _ in range(4))
                table[key][place].append(round(took / 1000, 1))
        time.sleep(pause_s)
    for (series, pages), rows in table.items():
        means = [statistics.mean(row) for row in rows]
        by_round = [statistics.mean(column) for column in zip(*rows, strict=True)]
        print(
            f"{series} {pages}: lists {spread_of(means):.1f} %, rounds {spread_of(by_round):.1f} %",
            [round(each) for each in means], [round(each) for each in by_round], flush=True,
        )  # fmt: skip
    return [
        {"series": series, "pages": pages, "us": rows} for (series, pages), rows in table.items()
    ]


def spread_of(values: list[float]) -> float:
    return 100 * (max(values) - min(values)) / statistics.mean(values)


def ways(bench: Bench, repeats: int) -> list[dict[str, Any]]:
    """Runs by both ways, in turns."""
    found = []
    for tokens in (1, 16):
        pool, host = bench.pools(tokens)
        backends = {"by_page": OneWay(pool, host, bench.driver),
                    "by_layer": OneWay(pool, host, bench.driver)}  # fmt: skip
        backends["by_layer"].by_layer = True
        for way in WAYS:
            for pages in (each for each in RUNS if each <= min(pool.pages, host.pages)):
                runs = ((0, pages),)
                size = pages * bench.layout_of(tokens).page_bytes
                operation = Copy(way, pages, size, extents(runs, runs), runs, runs)
                took: dict[str, list[int]] = {name: [] for name in backends}
                for _ in range(repeats):
                    for name, backend in backends.items():
                        device = TransferDevice(backend, way)
                        begun_ns = time.monotonic_ns()
                        device.run(operation, Control())
                        took[name].append(time.monotonic_ns() - begun_ns)
                row = {name: round(statistics.median(each[1:]) / 1000, 1)
                       for name, each in took.items()}  # fmt: skip
                found.append({"tokens": tokens, "way": way, "pages": pages, **row})
                print(found[-1], flush=True)
        for backend in backends.values():
            backend.close()
    return found


def visits(bench: Bench, number: int, budget_s: float) -> dict[str, Any]:
    """The fits and samples of a thorough calibration of these copies."""
    probe = chosen(bench)
    probe.visits = number
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(f"{folder}/journal", {})
        measured = Session([probe], journal, Silent(), effort="thorough", budget_s=budget_s).run()
        journal.close()
    seconds = time.monotonic() - begun_s
    base = load_profile("nvidia-h200")
    assert base.measurement is not None
    # Only with pages of the calibration's own size is there a back-end to put the others into.
    mine = ("pcie.copy.", "pcie.zero_copy.", "pcie.direct.")
    for each in base.measurement.series:
        if each.key.startswith(mine) and each.key not in measured.series:
            measured.series[each.key] = each
    built = build_profile(
        measured, Told("copies", "", "", "", ""), base, bench.geometry,
        Measurement(command="", began="", duration_s=0, facts={}), base.memory,
    )  # fmt: skip
    measurement = built.profile.measurement
    assert measurement is not None
    fits = [each for each in measurement.fits if "pages of 1" in each.key and "256" not in each.key]
    print(f"{number} visits, {seconds:.1f} s, missing: {measured.missing}")
    for fit in fits:
        print(f"    {fit.key}: {fit.median_error_permille} / {fit.p95_error_permille} permille, "
              f"{fit.kind}; {fit.verdict[:12]}", flush=True)  # fmt: skip
    return {
        "visits": number,
        "seconds": round(seconds, 1),
        "series": {
            key: [[*each.at, each.role, each.width_permille, list(each.ns)] for each in of.samples]
            for key, of in measured.series.items()
            if key.endswith((".1", ".16"))
        },
        "fits": {each.key: [each.median_error_permille, each.p95_error_permille] for each in fits},
    }


class Silent:
    """Progress for nobody."""

    def begin(self, points): ...
    def probe(self, name, points): ...
    def point(self, point, left_s): ...
    def done(self, points): ...
    def missing(self, what, reason):
        print(f"missing: {what}: {reason}", flush=True)


def tokens_of(series: str) -> int:
    return int(series.rsplit(".", 1)[1])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", required=True, help="a file for the numbers, JSON")
    parser.add_argument("--small", action="store_true", help="on the CPU, a moment of each")
    parser.add_argument("--flag", help="a file that is made when the traces are done")
    options = parser.parse_args()
    small = options.small
    if not small and not torch.cuda.is_available():
        print("this needs a CUDA GPU")
        return 2
    result: dict[str, Any] = {
        "machine": "CPU" if small else torch.cuda.get_device_name(),
        "torch": torch.__version__, "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(sys.argv),
    }  # fmt: skip
    scale = CPU_SCALE._replace(host_bytes=320 << 20) if small else None
    bench = Bench(
        "cpu" if small else "cuda", load_geometry("Qwen3-8B"), "Qwen3-8B", 64, scale=scale
    )
    sizes = {tokens: bench.layout_of(tokens).page_bytes for tokens in (1, 16)}
    probe = chosen(bench)

    def keep(name: str, found: Any) -> None:
        """What there is, if the rest has no time."""
        result[name] = found
        Path(options.out).write_text(json.dumps(result) + "\n", encoding="ascii")

    keep("traces", traces(probe, sizes, 0.05 if small else 1.0))
    if options.flag:
        Path(options.flag).touch()
    keep("lists", lists(probe, sizes, 2 if small else 8, 0.0 if small else 0.3))
    probe.close()
    keep("ways", ways(bench, 3 if small else 21))
    for number in (1, 3):
        keep(f"visits {number}", visits(bench, number, 1 if small else 60))
    bench.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
