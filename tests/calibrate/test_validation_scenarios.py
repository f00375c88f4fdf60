"""The validation's scenarios load the machine and its tiers as they say; what was recorded of them
is judged again to the same numbers.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from calibrate.validate.runs import Played
from calibrate.validate.validation import as_json, as_the_machine_did
from scenario.load import load_scenario
from scenario.profile import load_profile
from scenario.results import summary_text
from sim.replay import replay

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "benchmarks" / "validation"
sys.path.insert(0, str(FOLDER))
from disk import TTFT, as_a_run, summary_at, with_reads  # noqa: E402
from judge import SHARED_UNTIL, SLOWER_UNTIL, as_it_was_then, judged  # noqa: E402
from perturb import WRITES, combinations, slower, spread  # noqa: E402

SCENARIOS = sorted(FOLDER.glob("*.toml"))
JUDGED = sorted(FOLDER.glob("results/*/*/validation.json"))


@cache
def as_it_is(path: Path) -> dict[str, Any]:
    """The summary of a scenario; to be read only."""
    return replay(as_the_machine_did(load_scenario(path))).summary


def test_there_are_four_kinds_with_and_without_l3_and_one_that_is_saturated() -> None:
    names = {path.stem for path in SCENARIOS}
    kinds = ("conversation", "multi-turn", "shared", "thrash")
    assert names == {"saturated", *(f"{kind}-{tier}" for kind in kinds for tier in ("l2", "l3"))}


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_a_scenario_keeps_its_tiers_busy(path: Path) -> None:
    summary = as_it_is(path)
    tokens, prompts = summary["cached_tokens_total"], summary["prompt_tokens"]
    share = {tier: tokens[tier] / prompts for tier in tokens}
    assert 10 < summary["throughput"]["duration_s"] < 40
    assert share["device"] > 0.05
    assert share["host"] > 0.05
    if path.stem.endswith("l3"):
        assert share["storage"] > 0.02
    else:
        assert summary["tiers"]["storage"]["capacity_pages"] == 0
    if path.stem.startswith("thrash"):
        assert summary["computed_tokens"] / prompts > 0.6


@pytest.mark.parametrize(
    "path", [path for path in SCENARIOS if path.stem != "saturated"], ids=lambda path: path.stem
)
def test_a_scenario_asks_less_than_can_be_served(path: Path) -> None:
    scenario, summary = as_the_machine_did(load_scenario(path)), as_it_is(path)
    everything = {"load.arrivals": "at_once"}
    if summary["load"]["loop"] == "closed":
        everything["load.parallel"] = 16
    given = {"machine.transfer_mode": scenario.machine.transfer_mode, **everything}
    most = replay(load_scenario(path, given)).summary["throughput"]["requests_per_s"]
    assert 0.45 < summary["throughput"]["requests_per_s"] / most < 0.95


@pytest.mark.parametrize(
    ("name", "from_l3", "read_l3", "least"),
    [
        ("conversation-l3", 0.06, 0.2, 0.005),
        ("multi-turn-l3", 0.15, 0.3, 0.01),
        ("shared-l3", 0.06, 0.2, 0.01),
        ("thrash-l3", 0.06, 0.1, 0.01),
    ],
)
def test_a_disk_of_another_start_hardly_changes_a_scenario(
    name: str, from_l3: float, read_l3: float, least: float
) -> None:
    """The usual limits hold on a disk that reads 15 % slower or faster, though L3 is used: by so
    large a part of the prompt tokens, and by so many of the requests that reuse anything. Nor is
    the disk out of it: mean TTFT moves by `least`.
    """
    scenario = as_a_run(name, {})
    usual = summary_at(scenario, 1.0)
    assert usual["cached_tokens_total"]["storage"] / usual["prompt_tokens"] > from_l3
    assert sum(usual["hicache_dropped_tokens_total"].values()) == 0  # what L3 holds is no race
    rows = replay(scenario).columns
    reused = zip(rows["device_tokens"], rows["host_tokens"], rows["storage_tokens"], strict=True)
    from_tiers = [each for each in reused if sum(each) >= 1024]
    assert sum(each[2] > 0 for each in from_tiers) / len(from_tiers) > read_l3
    later = [read for read, turn in zip(rows["storage_tokens"], rows["turn"], strict=True) if turn]
    if name.startswith("multi-turn"):
        assert sum(read > 0 for read in later) / len(later) > 0.3
    for factor in (1 / 1.15, 1.15):
        summary = summary_at(scenario, factor)
        assert summary["cached_tokens_total"] == usual["cached_tokens_total"]
        off = [summary["ttft_ms"][key] / usual["ttft_ms"][key] - 1 for key in TTFT]
        assert least < abs(off[0]) < 0.03
        assert max(abs(each) for each in off[1:]) < 0.06
        rates = [each["throughput"]["requests_per_s"] for each in (summary, usual)]
        assert abs(rates[0] / rates[1] - 1) < 0.02


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_two_runs_of_a_scenario_may_differ_a_little(path: Path) -> None:
    """Every token comes from the same tier on a machine that is off by a little in the corners of
    what `perturb.py` tries, or has another disk's writes; and the usual limits hold.
    """
    scenario = as_a_run(path.stem, {})
    corners = [each for each in combinations() if 1.0 not in each.values()]
    assert len(corners) == 8
    writes = [{"writes": 1 / (1 + WRITES)}, {"writes": 1 + WRITES}]
    found = spread(scenario, corners if scenario.tiers.l3.is_zero else corners + writes)
    assert found.moved == found.share == 0
    assert found.ttft["mean"] < 0.03
    assert max(found.ttft["p90"], found.ttft["p99"]) < 0.06
    assert found.throughput < 0.02


def test_a_machine_off_by_a_little_takes_so_much_longer() -> None:
    profile = load_profile("nvidia-h200")
    same = {"prefill": 1.0, "link": 1.0, "engine": 1.0, "writes": 1.0}
    assert slower(profile, same) == profile
    changed = slower(profile, {"prefill": 2.0, "link": 2.0, "engine": 2.0, "writes": 2.0})
    assert profile.gpu.dense is not None
    assert changed.gpu.dense is not None
    for before, after in zip(profile.gpu.dense.points, changed.gpu.dense.points, strict=True):
        assert after == (before[0], 2 * before[1])
    assert changed.gpu.dense_decode == profile.gpu.dense_decode
    assert changed.pcie.h2d.points[0][1] == 2 * profile.pcie.h2d.points[0][1]
    duplex = profile.pcie.duplex_bytes_per_s.value
    assert changed.pcie.duplex_bytes_per_s.value == round(duplex / 2)
    backends, usual = changed.pcie.backends, profile.pcie.backends
    assert backends is not None
    assert usual is not None
    assert backends.at_once == usual.at_once
    assert backends.direct is not None
    assert usual.direct is not None
    assert backends.direct.page_bytes == usual.direct.page_bytes
    assert backends.direct.h2d.points[0][1] == 2 * usual.direct.h2d.points[0][1]
    assert changed.host.engine.step_ns.value == 2 * profile.host.engine.step_ns.value
    assert changed.disk.read_bytes_per_s == profile.disk.read_bytes_per_s
    before, after = (each.disk.write_bytes_per_s.points[0] for each in (profile, changed))
    assert after == (*before[:2], round(before[2] / 2))


def test_a_changed_disk_reads_so_much_faster_and_is_the_same_otherwise() -> None:
    profile = load_profile("nvidia-h200")
    changed = with_reads(profile, 2.0)
    for before, after in zip(
        profile.disk.read_bytes_per_s.points, changed.disk.read_bytes_per_s.points, strict=True
    ):
        assert after == (before[0], before[1], 2 * before[2])
    assert changed.disk.read_latency_ns.value == round(profile.disk.read_latency_ns.value / 2)
    assert changed.disk.write_bytes_per_s == profile.disk.write_bytes_per_s
    assert changed.gpu == profile.gpu


@pytest.mark.parametrize(
    ("script", "words", "message"),
    [
        ("disk.py", ["multi-turn-l3", "--by", "0"], "--by 0: it must be greater than 0"),
        ("disk.py", ["no-such"], "no-such.toml"),
        ("perturb.py", ["no-such"], "no-such.toml"),
    ],
)
def test_what_these_scripts_cannot_do_is_one_line(
    script: str, words: list[str], message: str
) -> None:
    done = subprocess.run(
        [sys.executable, FOLDER / script, *words], env={"PATH": "", "HICACHE_COMPILED": "0"},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("held", [True, False])
def test_judging_what_is_not_there_is_an_error_and_a_part_leaves_the_table(
    tmp_path: Path, held: bool
) -> None:
    """And what misses a limit is exit code 1."""
    path = next(each for each in reversed(JUDGED) if json.loads(each.read_text())["held"] == held)
    folder, name = tmp_path / "runs", path.parent.name
    shutil.copytree(path.parent, folder / name)
    shutil.copytree(path.parents[1] / "traces", folder / "traces")
    (folder / "validation.md").write_text("all of them")
    for names, code in (("no-such", 2), (name, 0 if held else 1)):
        done = subprocess.run(
            [sys.executable, FOLDER / "judge.py", folder, "--only", names],
            env={"PATH": "", "HICACHE_COMPILED": "0"},
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        assert (folder / "validation.md").read_text() == "all of them"
        assert (f"--only no-such: there are {name}" in done.stderr) == (code == 2)


@pytest.mark.parametrize("path", JUDGED, ids=lambda path: path.parent.name)
def test_what_was_recorded_is_judged_to_the_same_numbers(path: Path) -> None:
    found = json.loads(path.read_text())
    profile = found["profile"]["name"]
    again = judged(path.parent, {"machine.profile": profile}, "nothing")
    table = json.loads(summary_text(as_json(again)))
    for key in ("figures", "tokens_by_source", "limits", "device_model"):
        assert table[key] == found[key], key


def test_runs_are_judged_by_the_back_ends_that_they_had(tmp_path: Path) -> None:
    run = Played("run 1", load_scenario(SCENARIOS[0]), {}, {}, [], [], {})
    for measured_at, copies, is_slower in (
        ("2026-11-30T00:25:57+00:00", 1, True),
        (SHARED_UNTIL, 2, True),
        (SLOWER_UNTIL, 2, False),
        ("2026-12-01T00:00:00+00:00", 2, False),
        ("", 2, False),  # it does not say
    ):
        run.measured_at = measured_at
        scenario = as_it_was_then(run.scenario, [run, run], tmp_path)
        backends = load_profile(scenario.machine.profile).pcie.backends
        assert backends is not None
        assert backends.at_once is not None
        assert backends.at_once.value == copies, measured_at
        assert backends.direct is not None
        # A page of 9 MiB: 223 us when Python enqueued it, 190 by one call.
        assert (backends.direct.h2d_scattered.points[0][1] > 200_000) == is_slower, measured_at
    theirs = msgspec.structs.replace(
        run.scenario, machine=msgspec.structs.replace(run.scenario.machine, profile="mini-group-a")
    )
    run.measured_at = SHARED_UNTIL
    assert as_it_was_then(theirs, [run, run], tmp_path).machine.profile == "mini-group-a"


def test_the_runs_can_be_recorded_without_a_gpu(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 40, "output_length": 2, "hash_ids": [0]}\n')
    config = {
        "model_type": "qwen3", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 256,
        "max_position_embeddings": 4096, "tie_word_embeddings": True, "torch_dtype": "float32",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    given = {
        "trace.path": trace, "model.name": tmp_path / "config.json", "hw.compute": "synthetic",
        "tiers.l1": "10pages", "tiers.l2": "10pages", "tiers.l3": "10pages",
        "tiers.page_size_tokens": 16, "scheduler.chunk_tokens": 64,
    }  # fmt: skip
    out = tmp_path / "out"
    done = subprocess.run(
        [
            sys.executable, FOLDER / "record.py", "--device", "cpu", "--out", out, "shared-l3",
            *(f"--set={key}={value}" for key, value in given.items()),
        ],
        cwd=tmp_path, env={"PYTHONPATH": str(REPOSITORY), "PATH": "", "HOME": str(tmp_path)},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("requests/s") == 2
    for number in ("1", "2"):
        folder = out / "shared-l3" / f"hw-{number}"
        assert {each.name for each in folder.iterdir()} == {
            "scenario.toml", "summary.json", "completions.jsonl.gz"
        }  # fmt: skip
        scenario = load_scenario(folder / "scenario.toml")
        assert Path(scenario.trace.path).resolve() == (out / "traces" / "trace.jsonl").resolve()
