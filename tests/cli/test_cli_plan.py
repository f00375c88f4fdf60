"""`hicache plan`: a table, a file, a picture and a scenario; bad input is one line."""

from __future__ import annotations

import json
from pathlib import Path

import pandas
import pytest
from cli_helpers import files_under, hicache, refusal

from cli.targets import check_target

FEW = ("--l2", "4GiB,12GiB", "--l3", "0,20GiB", "--page-size", "64")
L1 = ("--l1", "40000tokens")


def test_a_plan_is_repeated_by_a_replay_of_its_scenario(tmp_path: Path, small_trace: Path) -> None:
    more = ("--plot", "p.svg", "--save-scenario", "b.toml", "--set", "trace.speed=6")
    done = hicache("plan", small_trace, *L1, *FEW, *more, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "plan: plan.json\nplot: p.svg\nscenario: b.toml\n" in done.stdout
    document = json.loads((tmp_path / "plan.json").read_text())
    ran, of = document["simulations"]["ran"], document["simulations"]["of"]
    assert ran + sum(document["simulations"]["skipped"].values()) == of
    assert f"{ran} of {of} combinations were simulated" in done.stdout
    chosen = document["points"][document["chosen"]]
    assert b"<svg" in (tmp_path / "p.svg").read_bytes()
    for name in ("plan.json", "p.svg", "b.toml"):  # its own would be replaced
        check_target(str(tmp_path / name), "plan", replaces=False)
    replayed = hicache("replay", "--scenario", "b.toml", "--out", "r", "-q", cwd=tmp_path)
    assert replayed.returncode == 0
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert summary["ttft_ms"]["p99"] == chosen["ttft_ms.p99"]
    assert summary["cache_hit_rate"] == chosen["cache_hit_rate"]
    command = next(
        line.removeprefix("repeat it: ")
        for line in done.stdout.splitlines()
        if line.startswith("repeat it: ")
    )
    assert hicache(*command.split()[1:], "--out", "s", "-q", cwd=tmp_path).returncode == 0
    assert files_under(tmp_path / "s") == files_under(tmp_path / "r")


def test_the_same_plan_is_the_same_bytes_and_a_goal_decides(
    tmp_path: Path, small_trace: Path
) -> None:
    plan = ("plan", small_trace, *L1, *FEW, "--price-l2", "4", "--price-l3", "0.1", "-q")
    assert hicache(*plan, "--jobs", "1", cwd=tmp_path).returncode == 0
    first = (tmp_path / "plan.json").read_bytes()
    assert hicache(*plan, "--jobs", "2", cwd=tmp_path).returncode == 0
    assert (tmp_path / "plan.json").read_bytes() == first
    assert json.loads(first)["goals"]["cost_unit"] == "money"
    done = hicache(*plan[:-1], "--ttft-p99", "1", cwd=tmp_path)
    assert done.returncode == 1
    assert "no plan: none has a TTFT p99 of 1 ms; the nearest has " in done.stdout


def test_policies_of_ones_own_are_planned_with_and_repeated_by_a_sweep(
    tmp_path: Path, small_trace: Path
) -> None:
    (tmp_path / "mine.py").write_text(
        "from hicache.restore_policy import Choice\n\n\nclass All:\n"
        "    def __init__(self, page_size_tokens, belief):\n        pass\n\n"
        "    def __call__(self, hits):\n"
        "        return Choice(max(hits.host, hits.storage), 'always')\n\n\n"
        "class Lru:\n    def __call__(self, node):\n        return node.last_access\n"
    )
    sizes = ("--l2", "4GiB", "--l3", "20GiB", "--page-size", "64", "--ttft-p99", "1e6")
    plan = ("plan", small_trace, *L1, *sizes, "--set", "trace.speed=6")
    own = ("--policy", "mine.py:All", "--set", "cache.eviction=mine:Lru")
    done = hicache(*plan, *own, "--save-scenario", "b.toml", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads((tmp_path / "plan.json").read_text())
    points = document["points"]
    assert {each["restore.policy"] for each in points} == {"mine.py:All"}
    usual = hicache(*plan, "--policy", "always", "--out", "u.json", "-q", cwd=tmp_path)
    assert usual.returncode == 0
    same = json.loads((tmp_path / "u.json").read_text())["points"]
    assert [{**each, "restore.policy": "always"} for each in points] == same
    assert any(each["hit_rates.all.tokens.host"] > 0 for each in points)
    assert (tmp_path / "b.toml").read_text().splitlines()[1:3] == [
        "# restore.policy was mine.py:All, a class of the user's",
        "# cache.eviction was mine:Lru, a class of the user's",
    ]
    command = next(
        line.removeprefix("repeat it: ")
        for line in done.stdout.splitlines()
        if line.startswith("repeat it: ")
    )
    assert hicache(*command.split()[1:], "-q", cwd=tmp_path).returncode == 0
    (row,) = pandas.read_parquet(tmp_path / "sweep.parquet").to_dict("records")
    assert row["ttft_ms.p99"] == points[document["chosen"]]["ttft_ms.p99"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("none.jsonl",), "none.jsonl: No such file"),
        ((), "no trace was given"),
        (("-",), "standard input cannot be read again"),
        (("TRACE", "--l2", "9pages"), "--l2 is 9pages: it must be bytes, such as 40GiB, or"),
        (("TRACE", "--l2", "2x"), "L2 of 221.1 GiB needs 221.1 GiB: nvidia-h200"),
        (("TRACE", "--l2", "1x", "--set", "ranks.tp=4"), "L2 of 122 GiB x 4 ranks needs 488 GiB"),
        (("TRACE", "--ranks", "6", "--set", "ranks.tp=4"), "--ranks is 6: a server has 4"),
        (("TRACE", "--l2", "40"), "40 of what?"),
        (("TRACE", "--l2", "1GiB,1GiB"), "1GiB is there twice"),
        (("TRACE", "--l2", "200GiB"), "200 GiB: nvidia-h200 has 128 GiB of host memory, of which"),
        (("TRACE", "--l2", "40GiB", "--ranks", "4"), "L2 of 40 GiB x 4 ranks needs 160 GiB"),
        (("TRACE", "--budget", "10GiB", "--l2", "20GiB"), "the budget is 10"),
        (("TRACE", "--budget", "100"), "100 of what?"),
        (("TRACE", "--price-l2", "4"), "--price-l3 is missing"),
        (("TRACE", "--price-l2", "0", "--price-l3", "0"), "both 0"),
        (("TRACE", "--price-l2", "-1", "--price-l3", "1"), "--price-l2 is -1"),
        (("TRACE", "--budget", "9GiB", "--price-l2", "4", "--price-l3", "1"), "amount of money"),
        (("TRACE", "--ttft-p99", "0"), "--ttft-p99 is 0"),
        (("TRACE", "--ranks", "0"), "--ranks is 0"),
        (("TRACE", "--host-fraction", "1.5"), "--host-fraction is 1.5"),
        (("TRACE", "--page-size", "64,no"), "--page-size is no"),
        (("TRACE", "--page-size", "100"), "100"),
        (("TRACE", "--policy", "best"), '"best": it must be'),
        (("TRACE", "--policy", "cost,gone.py:X"), "there is no module gone.py"),
        (("TRACE", "--set", "cache.eviction=math:sqrt"), "sqrt is no class but a builtin"),
        (("TRACE", "--set", "tiers.l2=1GiB"), "name its values with --l2"),
        (("TRACE", "--set", "restore.policy=cost"), "name its values with --policy"),
        (("TRACE", "--model", "Llama-3.1-70B"), "does not fit on nvidia-h200"),
        (("TRACE", "--jobs", "0"), "--jobs is 0"),
        (("TRACE", "--plot", "x.pdf"), "must end in .png or .svg"),
        (("TRACE", "--out", "mine.json"), "was not made by hicache plan"),
        (("TRACE", "--save-scenario", "mine.json"), "was not made by hicache plan"),
        (("TRACE", "--out", "no/x.json"), "there is no folder no"),
        (("TRACE", "--out", "x.svg", "--plot", "./x.svg"), "--out and --plot are both ./x.svg"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path,
    small_trace: Path,
    arguments: tuple[str, ...],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "mine.json").write_text("{}")
    given = [str(small_trace) if each == "TRACE" else each for each in arguments]
    assert reason in refusal(["plan", *given], tmp_path, monkeypatch, capsys)
