"""`python -m traces` and the progress bar."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from trace_helpers import REPOSITORY, line, write_lines

from hicache.errors import InputError
from traces import progress as progress_module
from traces.__main__ import main
from traces.progress import ProgressBar
from traces.reader import open_trace


def test_generate_then_facts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.jsonl.gz"
    assert main(["generate", str(path), "--hours", "0.05", "--seed", "3"]) == 0
    said = capsys.readouterr()
    assert main(["facts", str(path), "--page-size", "64", "--pages", "partial"]) == 0
    facts = capsys.readouterr()
    requests = said.out.split(": ")[1].split()[0]
    assert f"requests       {requests} in " in facts.out
    assert "of 64 tokens, partial" in facts.out
    assert "of tokens, " in facts.out
    assert said.err == facts.err == ""


def test_input_errors_are_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_lines(tmp_path / "t", [line([0], 9999)])
    assert main(["facts", str(path)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"error: {path}, line 1, hash_ids: 1 ids do not match")
    assert said.err.count("\n") == 1
    assert main(["generate", str(path), "--person-fraction", "2"]) == 2
    assert main(["facts", str(tmp_path)]) == 2


def test_a_block_size_is_also_the_page_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.jsonl"
    assert main(["generate", str(path), "--hours", "0.05", "--block-size", "100"]) == 0
    again = tmp_path / "again.jsonl"
    assert main(["generate", str(again), "--hours", "0.05", "--block-tokens", "100"]) == 0
    assert path.read_bytes() == again.read_bytes()
    capsys.readouterr()
    assert main(["facts", str(path), "--block-size", "100"]) == 0
    assert " of 100 tokens, full" in capsys.readouterr().out
    assert main(["facts", str(path), "--block-size", "100", "--page-size", "0"]) == 2
    assert "page size is 0" in capsys.readouterr().err


def test_generate_does_not_take_a_dash_for_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["generate", "-"]) == 2
    assert capsys.readouterr().err.startswith("error: generate writes a file, not standard output")
    assert list(tmp_path.iterdir()) == []


def test_it_runs_as_a_module(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", [line([0], 512)])
    done = subprocess.run(
        [sys.executable, "-m", "traces", "facts", "-"],
        cwd=REPOSITORY,
        input=path.read_bytes(),
        capture_output=True,
        check=True,
    )
    assert b"requests       1 in 0 s" in done.stdout
    assert done.stderr == b""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("size_bytes", [200, None])
def test_a_bar_is_drawn_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, size_bytes: int | None
) -> None:
    monkeypatch.setattr(progress_module, "PATIENCE_S", 0)
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with ProgressBar("reading") as bar:
        bar(100, size_bytes)
        bar(200, size_bytes)
    assert "reading" in terminal.getvalue()


def test_a_quick_read_draws_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    path = write_lines(tmp_path / "t", [line([0], 512)])
    with ProgressBar("reading") as bar:
        assert sum(1 for _ in open_trace(path, progress=bar).requests(512)) == 1
    assert terminal.getvalue() == ""


def test_nothing_is_drawn_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress_module, "PATIENCE_S", 0)
    with ProgressBar("reading") as bar:
        bar(1, 2)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys, "stderr", None)
    with ProgressBar("reading") as bar:
        bar(1, 2)


def test_the_bar_goes_away_when_reading_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "PATIENCE_S", 0)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    bar = ProgressBar("reading")

    def fail() -> None:
        with bar:
            bar(1, 2)
            assert bar._bar is not None
            raise InputError("line 7")

    with pytest.raises(InputError):
        fail()
    assert bar._bar is None
