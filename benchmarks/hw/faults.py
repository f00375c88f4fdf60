"""Faults on a real machine: copies that fail, a disk that fails, is cut, lost or full, requests
that are given up in every phase, kill -9 and restart, round after round.

    python benchmarks/hw/faults.py --seconds 120 --out faults.json

Each run serves conversations from three small tiers of a model's real pages (Qwen3-8B's if not
told otherwise); compute is synthetic, so that every page that a request reads is compared with its
tokens' pattern.
After each run: nothing is under way, no pin is left, pages add up, every request has ended, every
page that any tier still offers holds its pattern, and the record replays to the same rows. The same
checks as in tests/hw/test_faults_*.py; the first that fails ends the program with exit code 1.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "hw")]

import hw  # noqa: F401, E402  # before Triton is imported

import pytest  # isort: skip  # noqa: E402
import torch  # isort: skip  # noqa: E402
from fault_rigs import DAMAGE, CrookedDisk, GivingUp, after, failing  # noqa: E402
from fault_runs import HERE, FaultyRun, overrides, transfers, write_inputs  # noqa: E402
from file_store_helpers import environment  # noqa: E402

from hicache.record import Record  # noqa: E402
from scenario.load import load_scenario  # noqa: E402
from scenario.records import Scenario  # noqa: E402
from sim.replay import replay  # noqa: E402

TRANSFERS = ("zero_copy", "staged", "direct")
BACKENDS = ("pread", "direct", "io_uring")


class Campaign:
    """Runs of one size in `folder`; what they did is counted."""

    def __init__(self, folder: Path, options: dict[str, object], device: str) -> None:
        self.folder = folder
        self.options = options
        self.device = device
        self.rounds = 0

    def scenario(self, **options: object) -> Scenario:
        """Every round other back-ends and other tokens."""
        backends = {
            "hw.transfers": TRANSFERS[self.rounds % len(TRANSFERS)],
            "hw.l3_backend": BACKENDS[self.rounds % len(BACKENDS)],
            "seed": self.rounds,
        }
        given = {key.replace("__", "."): value for key, value in options.items()}
        return load_scenario(None, overrides(self.folder) | self.options | backends | given)

    def run(self, counts: Counter[str], scenario: Scenario, **how: Any) -> FaultyRun:
        """One run with its checks; `checks` are arguments of `FaultyRun.to_the_end`."""
        checks = how.pop("checks", {})
        patch = pytest.MonkeyPatch()
        watch = how.pop("watch", None)
        try:
            run = FaultyRun(scenario, self.device, patch, **how)
            if watch is not None:
                watch(run)
            outcome = run.to_the_end(**checks)
        finally:
            patch.undo()
        counts["runs"] += 1
        counts["requests"] += run.engine.metrics.requests
        counts["aborted"] += run.engine.metrics.aborted
        counts["operations"] += len(Record(run.run.lines).endings)
        moved = transfers(outcome)
        counts["reads_of_l3"] += moved["s2h"]["operations"]
        counts["failed_copies"] += sum(each["failed"] for each in moved.values())
        counts["pages_checked_at_end"] += sum(run.checked.values())
        counts["tokens_checked_while_running"] += getattr(
            run.assembly.queues["gpu"][0], "checked_tokens", 0
        )
        return run


def no_fault(campaign: Campaign, counts: Counter[str]) -> None:
    campaign.run(counts, campaign.scenario())


def failed_copies(campaign: Campaign, counts: Counter[str]) -> None:
    campaign.run(counts, campaign.scenario(), port=failing(0.2, slow=0.2))


def crooked(kind: str) -> Callable[[Campaign, Counter[str]], None]:
    def act(campaign: Campaign, counts: Counter[str]) -> None:
        backend = BACKENDS[campaign.rounds % 2]
        disk = CrookedDisk(kind, 4096 if backend == "direct" else 1)
        patch = pytest.MonkeyPatch()
        disk.install(patch)
        try:
            scenario = campaign.scenario(hw__l3_backend=backend)
            campaign.run(counts, scenario, checks={"heal": patch.undo})
        finally:
            patch.undo()
        counts["crooked_system_calls"] += disk.calls.total() // 3

    return act


def damaged(kind: str) -> Callable[[Campaign, Counter[str]], None]:
    def act(campaign: Campaign, counts: Counter[str]) -> None:
        path = campaign.folder / "l3"
        # Just before the first read: a fast machine may not read often.
        rig = after("s2h", 0, lambda: DAMAGE[kind](path))
        scenario = campaign.scenario(hw__checksum="crc32")
        campaign.run(counts, scenario, rig=rig, checks={"l3": "lost"})
        path.unlink(missing_ok=True)  # a file that was cut is not known for ours any more

    return act


def may_not_grow(campaign: Campaign, counts: Counter[str]) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    scenario = campaign.scenario()

    def limit(run: FaultyRun) -> None:
        most = int(run.store.slot_bytes * 40.5)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))

    def lift() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    try:
        campaign.run(counts, scenario, watch=limit, checks={"heal": lift})
    finally:
        lift()


def given_up(campaign: Campaign, counts: Counter[str]) -> None:
    giving_up = GivingUp(most=4)
    campaign.run(counts, campaign.scenario(), rig=giving_up.rig, watch=giving_up.watch)
    for phase, times in giving_up.given_up.items():
        counts[f"given_up_{phase}"] += times


def killed(campaign: Campaign, counts: Counter[str]) -> None:
    """kill -9 while L3 is busy: the record replays to its end, the next run has the same file."""
    keys = overrides(campaign.folder) | campaign.options | {"seed": campaign.rounds}
    (campaign.folder / "empty.toml").write_text("")
    out = campaign.folder / f"killed-{campaign.rounds}"
    command = [sys.executable, "-m", "cli.main", "run", "empty.toml", f"--device={campaign.device}"]
    process = subprocess.Popen(
        [*command, "-q", f"--out={out}", *(f"--set={key}={value}" for key, value in keys.items())],
        cwd=campaign.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env=environment(),
    )  # fmt: skip
    record = out.with_name(out.name + ".unfinished") / "completions.jsonl"
    deadline_s = time.monotonic() + 120
    while True:
        text = record.read_text() if record.exists() else ""
        if '"s2h"' in text and '"h2s"' in text and "Decode" in text:
            break
        assert process.poll() is None, f"it ended before it was killed: {process.communicate()[1]}"
        assert time.monotonic() < deadline_s, "the run does not get to L3"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    scenario = load_scenario(record.with_name("scenario.toml"))
    with record.open() as lines:
        outcome = replay(scenario, replay_of=Record(lines))
    assert outcome.cut_off, "the record of a killed run is whole"
    counts["kills"] += 1
    counts["requests_of_killed_runs"] += len(outcome.columns["request"])
    campaign.run(counts, campaign.scenario(seed=1000 + campaign.rounds))


# Each with what it counts when it happens: a fault that never did was not survived either.
FAULTS: dict[str, tuple[Callable[[Campaign, Counter[str]], None], str]] = {
    "none": (no_fault, "runs"),
    "failed and late copies, targets spoiled": (failed_copies, "failed_copies"),
    "EIO": (crooked("EIO"), "failed_copies"),
    "short reads and writes": (crooked("short"), "crooked_system_calls"),
    "file truncated": (damaged("truncated"), "failed_copies"),
    "file removed": (damaged("removed"), "failed_copies"),
    "file overwritten, with checksums": (damaged("overwritten"), "failed_copies"),
    "disk full (EFBIG)": (may_not_grow, "failed_copies"),
    "aborts in every phase": (given_up, "aborted"),
    "kill -9 and restart": (killed, "kills"),
}


def without_effect(table: dict[str, Counter[str]]) -> str:
    """The faults that were tried and never happened, for people; empty if there are none."""
    tried = {name: counts for name, counts in table.items() if counts["runs"]}
    idle = [name for name, counts in tried.items() if not counts[FAULTS[name][1]]]
    return f"never happened: {', '.join(idle)}" if idle else ""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=120, help="no round begins after them")
    parser.add_argument("--device", default=HERE)
    parser.add_argument("--model", default="Qwen3-8B", help="whose pages; a name or a config.json")
    parser.add_argument("--page", type=int, default=64, help="tokens of a page")
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--pages", type=int, default=40, help="of L1 and of L2")
    parser.add_argument("--out", help="a JSON file")
    given = parser.parse_args()
    began_s = time.monotonic()
    table: dict[str, Counter[str]] = {name: Counter() for name in FAULTS}
    failure = ""
    with tempfile.TemporaryDirectory(prefix="hicache-faults-") as made:
        folder = Path(made)
        write_inputs(folder, clients=given.clients, rounds=4, page=given.page)
        campaign = Campaign(
            folder,
            {
                "model.name": given.model if given.model != "tiny" else str(folder / "config.json"),
                "tiers.page_size_tokens": given.page,
                "tiers.l1": f"{given.pages}pages",
                "tiers.l2": f"{given.pages}pages",
                "tiers.l3": f"{given.clients * 20}pages",
                "scheduler.chunk_tokens": given.page * 8,
                "scheduler.max_running_requests": 8,
            },
            given.device,
        )
        while not failure and time.monotonic() - began_s < given.seconds:
            for name, (act, _) in FAULTS.items():
                if campaign.rounds and time.monotonic() - began_s > given.seconds:
                    break
                start_s = time.monotonic()
                try:
                    act(campaign, table[name])
                except Exception as error:
                    failure = f"{name}, round {campaign.rounds}: {type(error).__name__}: {error}"
                    break
                finally:
                    table[name]["milliseconds"] += int((time.monotonic() - start_s) * 1e3)
            campaign.rounds += 1
    failure = failure or without_effect(table)
    for name, counts in table.items():
        print(f"{name}: {', '.join(f'{value} {key}' for key, value in counts.items())}")
    print(failure or f"all that must hold held, {campaign.rounds} rounds")
    if given.out:
        result = {
            "command": " ".join(sys.argv),
            "date": time.strftime("%Y-%m-%d"),
            "device": torch.cuda.get_device_name() if given.device == "cuda" else "CPU",
            "software": {"python": platform.python_version(), "torch": torch.__version__},
            "model": given.model,
            "rounds": campaign.rounds,
            "failure": failure or None,
            "faults": table,
        }
        Path(given.out).write_text(json.dumps(result, indent=2) + "\n")
    return 1 if failure else 0


if __name__ == "__main__":
    sys.exit(main())
