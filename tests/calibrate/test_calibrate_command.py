"""`hicache calibrate` and `hicache profile`, as users run them: without a GPU, stopped, resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from calibrate.__main__ import _options, main
from calibrate.command import BUDGET_S, _budget_s, identity, run_calibration
from calibrate.journal import Journal
from calibrate.kit import Options, make_kit
from calibrate.plot_files import write_plots
from cli.main import app, run
from hicache.errors import InputError
from scenario.profile import decode_profile, load_profile
from scenario.results import load_result

REPOSITORY = Path(__file__).resolve().parents[2]
TRACE = "\n".join(
    json.dumps(
        {
            "timestamp": 200 * each, "input_length": 3000, "output_length": 20,
            "hash_ids": [*range(4), 10 * each + 10, 10 * each + 11],
        }
    )
    for each in range(12)
)  # fmt: skip
QUICK = ["--device", "none", "--disk-size", "64MiB", "--page-size", "4", "--budget", "1"]


def hicache(monkeypatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["hicache", *arguments])
    assert app is not None
    return run()


@pytest.fixture(scope="module")
def without_gpu(tmp_path_factory) -> Path:
    """The profile of this machine's disk and memory."""
    folder = tmp_path_factory.mktemp("none")
    assert main([*QUICK, "--disk", str(folder), "--out", str(folder / "mine.json")]) == 0
    return folder / "mine.json"


def test_without_a_gpu_disk_and_memory_are_measured_and_the_rest_is_said(without_gpu):
    profile = load_profile(without_gpu)
    assert profile.name == "mine"
    assert profile.disk.read_bytes_per_s.provenance == "measured"
    assert profile.host.copy_bytes_per_s.provenance == "measured"
    assert profile.memory.storage_bytes.provenance == "measured"
    missing = profile.measurement.missing
    assert "gpu: from nvidia-h200" in missing
    assert "pcie: from nvidia-h200" in missing
    assert {"gpu.dense", "pcie.h2d"} <= {each.key for each in profile.estimates()}
    series = {each.key: each for each in profile.measurement.series}
    assert {"disk.read", "disk.write", "disk.read_mixed", "disk.cached.cold", "host.copy"} <= set(
        series
    )
    assert all(each.ns for each in series["disk.read"].samples)
    assert "cpu" in profile.measurement.facts
    # Nothing of where it lay, and nothing left on the disk.
    assert str(without_gpu.parent) not in without_gpu.read_text()
    assert [each.name for each in without_gpu.parent.iterdir()] == ["mine.json"]


def test_such_a_profile_replays(without_gpu, tmp_path, monkeypatch):
    (tmp_path / "trace.jsonl").write_text(TRACE)
    out = str(tmp_path / "result")
    code = hicache(
        monkeypatch, "replay", str(tmp_path / "trace.jsonl"), "--profile", str(without_gpu),
        "--l1", "2GiB", "--l2", "1x", "--l3", "2x", "--out", out, "-q",
    )  # fmt: skip
    assert code == 0
    summary = load_result(out).summary
    assert summary["ttft_ms"]["mean"] > 0
    assert any(each["key"] == "gpu.dense" for each in summary["estimates"])
    assert not any(each["key"].startswith("disk.read") for each in summary["estimates"])


def test_it_is_shown_compared_and_plotted(without_gpu, tmp_path, monkeypatch, capsys):
    assert hicache(monkeypatch, "profile", "show", str(without_gpu)) == 0
    shown = capsys.readouterr().out
    assert "disk.read_bytes_per_s" in shown
    assert "not measured: gpu: from nvidia-h200" in shown
    assert hicache(monkeypatch, "profile", "diff", "nvidia-h200", str(without_gpu)) == 0
    told = capsys.readouterr().out
    assert "disk.read_bytes_per_s" in told
    assert "gpu.dense " not in told  # the same numbers
    page = tmp_path / "page.html"
    assert hicache(monkeypatch, "profile", "plot", str(without_gpu), "--out", str(page)) == 0
    text = page.read_text()
    assert text.count("<svg") >= 6
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "disk.read_bytes_per_s, disk.read_latency_ns" in text


def test_a_page_is_the_same_bytes_every_time_and_plots_are_files(tmp_path):
    profile = load_profile("mini-group-a")
    for name in ("one.html", "other.html"):
        write_plots(profile, str(tmp_path / name))
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "other.html").read_bytes()
    write_plots(profile, str(tmp_path / "pngs"))
    assert {"prefill.png", "disk_read.png"} <= {each.name for each in (tmp_path / "pngs").iterdir()}
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file"):
        write_plots(profile, str(tmp_path / "file" / "x"))


def test_a_budget_counts_from_the_commands_begin_and_some_of_it_is_always_left():
    given = Options(out="mine.json", budget_s=28)
    assert [_budget_s(given, spent_s) for spent_s in (0, 8, 21, 27, 60)] == [28, 20, 7, 7, 7]
    assert [_budget_s(Options(out="", effort=each), 8) for each in BUDGET_S] == [170, 880]


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_writes_what_is_done_and_the_same_command_goes_on(tmp_path, sent, code):
    out = tmp_path / "mine.json"
    words = [
        sys.executable, "-m", "calibrate", "--device", "none", "--disk-size", "256MiB",
        "--page-size", "4", "--disk", str(tmp_path), "--out", str(out), "--budget", "60",
    ]  # fmt: skip
    environment = {**os.environ, "HICACHE_COMPILED": "0"}
    child = subprocess.Popen(
        words, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    journal = tmp_path / "mine.json.journal"
    deadline = time.monotonic() + 60
    while not journal.exists() or journal.read_text().count("\n") < 5:
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    child.send_signal(sent)
    _, told = child.communicate(timeout=60)
    assert child.returncode == code, told
    assert "the same command goes on" in told
    half = load_profile(out)
    assert any("disk: stopped with" in each for each in half.measurement.missing)
    points = sum(len(each.samples) for each in half.measurement.series)
    assert points >= 4
    # The same command, with less time for what is left.
    done = subprocess.run(
        [*words[:-1], "1"], cwd=REPOSITORY, env=environment, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert f"{points} points are done already" in done.stderr
    assert not journal.exists()
    whole = load_profile(out)
    assert not any("stopped" in each for each in whole.measurement.missing)
    before = {
        (series.key, each.at): each.ns for series in half.measurement.series
        for each in series.samples
    }  # fmt: skip
    after = {
        (series.key, each.at): each.ns for series in whole.measurement.series
        for each in series.samples
    }  # fmt: skip
    assert before.items() <= after.items()
    # It began when the first did, and took as long as both.
    assert whole.measurement.began == half.measurement.began
    assert whole.measurement.duration_s >= half.measurement.duration_s
    load = whole.measurement.facts["load"]
    assert load.startswith(f"{half.measurement.facts['load']}; ")
    assert load.endswith(" when it went on")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"only": ("stepps",)}, "--only stepps: it must be of steps, engine"),
        ({"l3_backend": "ftp"}, "--l3-backend ftp: it must be of"),
        ({"page_size_tokens": 0}, "--page-size 0: it must be 1 or more"),
        ({"other_pages": (16, 0)}, "--page-size 0: it must be 1 or more"),
        ({"other_pages": (16, 64)}, "--page-size 64, 16, 64: each may be given once"),
        ({"only": ("steps",)}, "--only steps: it is not .*; measured here are disk, host"),
        ({"only": ("host", "peers")}, "--only peers: there are not several GPUs here"),
        ({"only": ("server",)}, "--only server: no --server was given"),
        ({"budget_s": -1.0}, "--budget -1: it must be a number of seconds, 0 or more"),
        ({"budget_s": float("nan")}, "--budget nan: it must be a number of seconds"),
        ({"budget_s": float("inf")}, "--budget inf: it must be a number of seconds"),
        (
            {"disk_bytes": 256 << 20, "page_size_tokens": 4096},
            "--disk-size 256 MiB: 32 pages of 4096 tokens are needed, 18 GiB; give a larger one",
        ),
        ({"disk_bytes": 1 << 60}, "--disk-size 1024 PiB: .* are free there"),
        ({"out": "mine.txt"}, "--out mine.txt: a profile is a .json file"),
        ({"out": "/no/such/folder/mine.json"}, "there is no folder /no/such/folder"),
        ({"report": "/no/such/folder/x.html"}, "--report .*: there is no folder /no/such/folder"),
        ({"out": "./mine.json", "report": "mine.json"}, "--report mine.json: that is where --out"),
        ({"disk": "/no/such/folder"}, "--disk /no/such/folder: no such folder"),
        ({"base": "h300"}, "machine.profile is 'h300': no known machine"),
        ({"model": "Qwen9"}, "no known model"),
        ({"server": "gopher://x"}, "it must be a URL"),
    ],
)
def test_bad_options_are_one_clear_line(changes, message, tmp_path):
    options = Options(out=str(tmp_path / "mine.json"), device="none")._replace(**changes)
    with pytest.raises(InputError, match=message):
        run_calibration(options)
    assert list(tmp_path.iterdir()) == []


def test_what_its_time_was_too_short_for_is_done_by_the_same_command(tmp_path, capsys, monkeypatch):
    out = tmp_path / "mine.json"
    words = [*QUICK, "--disk", str(tmp_path), "--only", "host", "--out", str(out)]
    monkeypatch.setattr("calibrate.session.OVER_S", -2.0)
    assert main(words) == 0
    assert "the time was over: " in capsys.readouterr().err
    missing = load_profile(out).measurement.missing
    assert missing[0].startswith("host: the time was over with ")
    monkeypatch.undo()
    assert main(words) == 0
    assert "the time was over" not in capsys.readouterr().err
    assert [each.key for each in load_profile(out).measurement.series] == ["host.copy"]
    assert [each.name for each in tmp_path.iterdir()] == ["mine.json"]


def test_a_folder_is_no_profile(tmp_path):
    (tmp_path / "mine.json").mkdir()
    with pytest.raises(InputError, match=r"--out .*mine\.json: it is a folder"):
        run_calibration(Options(out=str(tmp_path / "mine.json"), device="none"))


@pytest.mark.parametrize(
    "other",
    [
        ["--only", "host"],
        ["--disk-size", "32MiB"],
        ["--page-size", "8"],
        ["--thorough"],
    ],
)
def test_what_was_begun_otherwise_is_not_gone_on_with(tmp_path, capsys, other):
    """Else its samples would be lost, or mixed with others."""
    out = str(tmp_path / "mine.json")
    journal = tmp_path / "mine.json.journal"
    words = [*QUICK, "--disk", str(tmp_path), "--out", out]
    options = _options(words)
    with ExitStack() as stack:
        kit = make_kit(options, stack)
        Journal(str(journal), identity(options, kit)).close()
    before = journal.read_bytes()
    assert main([*words, *other]) == 2
    assert "was begun there, this one has" in capsys.readouterr().err
    assert journal.read_bytes() == before


def test_the_console_command_is_the_same(tmp_path, monkeypatch):
    out = tmp_path / "mine.json"
    code = hicache(
        monkeypatch, "calibrate", *QUICK, "--only", "host", "--disk", str(tmp_path), "--out",
        str(out), "--name", "lab",
    )  # fmt: skip
    assert code == 0
    profile = decode_profile(out.read_bytes(), "mine")
    assert profile.name == "lab"
    assert profile.measurement.command.startswith("hicache calibrate --device none")
    assert [each.key for each in profile.measurement.series] == ["host.copy"]
