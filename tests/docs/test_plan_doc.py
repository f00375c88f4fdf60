"""docs/plan.md and docs/sweep.md: the plan shown is what comes out, a sweep's columns too."""

from __future__ import annotations

import re
from pathlib import Path

import pandas
import pytest

from cli.plan_run import PlanArguments, run_plan
from cli.sweep_run import SweepArguments, run_sweep
from traces.generator import AgentOptions, write_trace

REPOSITORY = Path(__file__).resolve().parents[2]
CONVERSATION = REPOSITORY.parent / "shared" / "traces" / "mooncake_conversation.jsonl"
PLAN, SWEEP = (
    (REPOSITORY / "docs" / name).read_text(encoding="utf-8") for name in ("plan.md", "sweep.md")
)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("plan") / "trace.jsonl"
    options = AgentOptions(
        hours=0.03, turns_mean=6, sessions_per_hour=3000, system_prompt_median_tokens=1000,
        longest_prompt_tokens=8000,
    )  # fmt: skip
    write_trace(options, path)
    return str(path)


@pytest.mark.extended
def test_the_plan_shown_is_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if not CONVERSATION.exists():
        pytest.skip(f"{CONVERSATION.name} is not beside this checkout")
    monkeypatch.chdir(tmp_path)
    settings = re.search(r"\(`--set (\S+) --price-l2 (\S+) --price-l3 (\S+)`\)", PLAN)
    assert settings is not None
    given = PlanArguments(
        str(CONVERSATION), price_l2=float(settings[2]), price_l3=float(settings[3]),
        assignments=[settings[1]],
    )  # fmt: skip
    assert run_plan(given) == 0
    said = " ".join(capsys.readouterr().out.split())
    shown = re.findall(r"^```text\n(.*?)^```$", PLAN, re.M | re.S)[0]
    table, sentences = shown.split("\n\n")
    rows = table.splitlines()
    assert len(rows) > 3
    for row in rows:
        assert " ".join(row.split()) in said, row
    for sentence in re.split(r"\n(?=chosen:|L3 breaks|refused:)", sentences.strip()):
        assert " ".join(sentence.split()) in said, sentence


def test_the_columns_of_a_sweep_are_there(
    trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = SweepArguments(
        [trace], ["tiers.l2=0,1x", "restore.policy=cost,always"], ["tiers.l1=40000tokens"],
        folders="all", jobs=1, quiet=True,
    )  # fmt: skip
    assert run_sweep(given) == 0
    rows = pandas.read_parquet("sweep.parquet")
    table = SWEEP.split("## The table")[1].split("\n## ")[0]
    named = {
        name
        for line in re.findall(r"^\| .*$", table, re.M)
        for name in re.findall(r"`([\w.]+)`", line)
        if not name.endswith((".json", ".md")) and name != "pandas.json_normalize"
    }
    assert named - {"scenario"} <= set(rows.columns)  # no scenario file was given
    (code_shown,) = re.findall(r"^```python\n(.*?)^```$", SWEEP, re.M | re.S)
    exec(compile(code_shown, "sweep.md", "exec"), {})
