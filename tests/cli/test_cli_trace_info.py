"""`hicache trace info`: a table or JSON, from files and pipes; and the help of the group."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_helpers import REPOSITORY, SHIPPED_TRACE, hicache, line, write_lines

from cli import main as command
from cli.trace import NAMES
from traces.report import TraceInfo

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `hicache trace` with arguments in this process: exit code, output, errors."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["hicache", "trace", *map(str, arguments)])
        code = command.run()
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def test_a_table_for_people(run: Run) -> None:
    code, out, err = run("info", SHIPPED_TRACE, "--page-size", "64")
    assert (code, err) == (0, "")
    words = " ".join(out.split())
    assert "format mooncake" in words
    assert "requests 6,878 in 89 min 5" in words
    assert "of 512 tokens in prompts; " in words
    assert "of full pages of 64 tokens" in words
    assert "prompt tokens" in words
    assert "LRU cache for 25% 50% 75% 90%" in words
    assert "most repeated prefixes requests tokens of all prompt tokens" in words


def test_json_has_every_field_of_the_report(run: Run, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", line([0, 1], 1000, 0), line([0, 2], 1000, 500))
    code, out, err = run("info", path, "--json")
    assert (code, err) == (0, "")
    report = json.loads(out)
    assert set(report) == set(TraceInfo.__dataclass_fields__)
    assert (report["requests"], report["path"]) == (2, str(path))
    assert report["ideal"] == {
        "block_tokens": 512, "blocks": 4, "hit_blocks": 1, "hit_rate_blocks": 0.25,
        "hit_rate_tokens": 0.256,
    }  # fmt: skip
    assert report["sharing"]["top_prefixes"] == [
        {"requests": 2, "tokens": 512, "repeated_tokens": 512}
    ]


def test_standard_input_is_read_once_and_enough(tmp_path: Path) -> None:
    text = SHIPPED_TRACE.read_bytes()[:200_000].rpartition(b"\n")[0] + b"\n"
    done = hicache("trace", "info", "-", "--json", cwd=tmp_path, stdin=text)
    assert (done.returncode, done.stderr) == (0, "")
    (tmp_path / "t").write_bytes(text)
    again = hicache("trace", "info", "t", "--json", cwd=tmp_path)
    one, other = json.loads(done.stdout), json.loads(again.stdout)
    assert (one.pop("path"), other.pop("path")) == ("-", "t")
    assert one == other


def test_malformed_rows_stop_it_or_are_listed(run: Run, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", line([0], 512), line([0, 1], 512), line([0], 512))
    code, out, err = run("info", path)
    assert (code, out) == (2, "")
    assert err.startswith(f"hicache: error: {path}, line 2, hash_ids: 2 ids do not match")
    assert err.count("\n") == 1
    code, out, err = run("info", path, "--on-error", "skip")
    assert (code, err) == (0, "")
    assert "looks wrong: malformed: 1 rows were left out" in out
    assert "left out: line 2, hash_ids: 2 ids" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("info", "nowhere"), "nowhere: cannot be opened: No such file or directory"),
        (("info", SHIPPED_TRACE, "--page-size", "100"), "page size 100 does not divide"),
        (("info", SHIPPED_TRACE, "--page-size", "0"), "page size is 0: it must be at least 1"),
        (("info", SHIPPED_TRACE, "--block-size", "0"), "block size is 0: it must be at least 1"),
        (("info", SHIPPED_TRACE, "--on-error", "maybe"), "on_error is 'maybe'"),
        (("info", REPOSITORY / "README.md"), "line 1: text of an unknown format; a trace is one"),
        (("info", REPOSITORY / "docs"), "is a folder without trace files"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    run: Run, arguments: tuple[str, ...], message: str
) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("hicache: error: ")
    assert message in err
    assert err.count("\n") == 1


def test_help_teaches_with_an_example(run: Run) -> None:
    code, out, _ = run("--help")
    assert code == 0
    for name in NAMES:
        assert f"\n  {name} " in out
        code, text, _ = run(name, "--help")
        assert code == 0
        assert f"Example: hicache trace {name} " in " ".join(text.split())


def test_an_unknown_command_is_a_usage_error(run: Run) -> None:
    code, _, err = run("inform", "t")
    assert code == 2
    assert "No such command 'inform'" in err


def test_a_replay_loads_none_of_it(tmp_path: Path) -> None:
    code = (
        "import sys\nsys.argv = ['hicache', 'replay', 'nowhere']\n"
        "from cli.main import run\nassert run() == 2\n"
        "print(*sorted(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert "cli.trace" in loaded
    assert not loaded & {
        "cli.trace_commands", "cli.trace_workloads", "traces.info", "traces.workloads",
        "traces.writers",
    }  # fmt: skip
