"""`hicache compare` and `hicache report` as a user runs them: files, output, refusals, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from cli_helpers import COMMAND, files_under, hicache, refusal

from cli.targets import check_target

TIERS = ("--l1", "40000tokens", "--l2", "2x", "--l3", "10x")
POLICY = """
from hicache.restore_policy import Choice


class Never:
    def __init__(self, page_size_tokens, belief): ...
    def __call__(self, hits):
        return Choice(hits.device, "mine")
"""


def test_from_two_policies_and_one_of_my_own_to_a_page(small_trace: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(POLICY)
    asked = (
        "compare", small_trace, *TIERS, "--policy", "never", "--policy", "mine:Never",
        "--resamples", "100",
    )  # fmt: skip
    done = hicache(*asked, "--plots", "--out", "c", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads((tmp_path / "c" / "compare.json").read_text())
    (mine,) = document["comparisons"]
    assert mine["verdict"] in done.stdout
    assert {each["difference"] for each in mine["differences"].values()} == {0}
    assert done.stdout.count("warning: never, Never: ") >= 1  # said once of both
    assert done.stdout.endswith("comparison: c\nas a page: hicache report c\n")
    plots = {each.name for each in (tmp_path / "c" / "plots").iterdir()}
    assert {"ttft.png", "tokens.png", "changes-Never.png", "sources-never.png"} <= plots
    page = hicache("report", "c", cwd=tmp_path)
    assert (page.returncode, page.stderr, page.stdout) == (0, "", "report: c.html\n")
    assert mine["verdict"] in (tmp_path / "c.html").read_text()
    check_target(
        str(tmp_path / "c.html"), "report", replaces=False
    )  # its own page would be replaced
    again = hicache(
        "compare", "--file", "c/compare.toml", "--resamples", "100", "--out", "d", "-q",
        cwd=tmp_path, env={"PYTHONHASHSEED": "77"},
    )  # fmt: skip
    assert again.stdout.splitlines() == [mine["verdict"], "d"]
    first, second = (files_under(tmp_path / each) for each in "cd")
    assert {name: first[name] for name in second} == second


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--policy", "cost"), "1 variant: a comparison takes two or more"),
        (("--policy", "cost", "--policy", "absent:X"), "there is no module absent"),
        (("--policy", "cost", "--eviction", "lru", "--set", "nix=1"), "unknown key nix"),
        (("--variant", "a", "--variant", "b", "--resamples", "5"), "--resamples is 5"),
        (("--variant", "a", "--variant", "b", "--seed", "-1"), "--seed is -1"),
        (("--variant", "a", "--variant", "b", "--out", "taken"), "holds notes, which belongs"),
        (("--variant", "a", "--variant", "b", "--set", "trace.path=x"), "traces are named without"),
        (("--file", "absent.toml"), "absent.toml: No such file"),
    ],
)
def test_what_cannot_be_compared_is_one_line_and_leaves_nothing(
    small_trace: Path,
    tmp_path: Path,
    arguments: tuple[str, ...],
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes").write_text("mine")
    assert why in refusal(("compare", small_trace, *arguments), tmp_path, monkeypatch, capfd)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("absent",), "absent is no result folder"),
        (("taken", "--out", "taken/notes"), "was not made by hicache report; --force replaces it"),
        (("taken", "--out", "no/such.html"), "there is no folder no"),
        (("taken", "--out", "taken"), "is no file that could be replaced"),
        (("taken", "--rows", "0"), "--rows is 0"),
    ],
)
def test_what_cannot_be_reported(
    tmp_path: Path,
    arguments: tuple[str, ...],
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes").write_text("mine")
    assert why in refusal(("report", *arguments), tmp_path, monkeypatch, capfd)


def test_a_refusal_is_the_exit_code_of_the_process(small_trace: Path, tmp_path: Path) -> None:
    for arguments in (("compare", small_trace, "--policy", "cost"), ("report", "absent")):
        done = hicache(*arguments, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("hicache: error: ")
        assert done.stderr.count("\n") == 1
        assert files_under(tmp_path) == {}


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_ctrl_c_leaves_no_half_comparison(small_trace: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    running = subprocess.Popen(
        [COMMAND, "compare", small_trace, pipe, "--variant", "a", "--variant", "b"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    # It opens the pipe once the first trace was replayed, and then waits for what never comes.
    with pipe.open("w"):
        time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
    assert running.returncode == 130, (out, err)
    assert "interrupted: no result was written" in err
    assert list(tmp_path.iterdir()) == [pipe]
