"""`hicache trace info`: a table or JSON, from files and pipes; and the help of the group."""

from __future__ import annotations

import json
import re
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
    assert "LRU cache for a part of the ideal hits 25% 50% 75% 90%" in words
    assert all(each == each.rstrip() for each in out.splitlines())
    assert "\n\n\n" not in out
    assert "GiB" not in out
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
    assert "looks wrong: malformed: 1 row was left out" in out
    assert "left out: line 2, hash_ids: 2 ids" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("info", "nowhere"), "nowhere: cannot be opened: No such file or directory"),
        (("info", SHIPPED_TRACE, "--page-size", "100"), "page size 100 does not divide"),
        (("info", SHIPPED_TRACE, "--page-size", "0"), "page size is 0: it must be at least 1"),
        (("info", SHIPPED_TRACE, "--block-size", "0"), "block size is 0: it must be at least 1"),
        (("info", SHIPPED_TRACE, "--on-error", "maybe"), "on_error is 'maybe'"),
        (("info", REPOSITORY / "README.md"), "line 1: text of an unknown format (it starts"),
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
    assert "No such command 'inform' (did you mean info?)" in err


def test_caches_are_also_given_in_bytes_of_a_model(run: Run) -> None:
    code, out, err = run("info", SHIPPED_TRACE, "--model", "Qwen3-8B")
    assert (code, err) == (0, "")
    tokens = re.search(r"^tokens +([0-9,]+)", out, re.M)
    sizes = re.search(r"^GiB of Qwen3-8B's KV +([0-9.]+)", out, re.M)
    assert tokens is not None
    assert sizes is not None
    # 144 KiB a token.
    assert float(sizes[1]) == pytest.approx(int(tokens[1].replace(",", "")) * 144 / 2**20, rel=0.01)
    code, _, err = run("info", SHIPPED_TRACE, "--model", "Qwen3-9B")
    assert (code, "did you mean Qwen3-8B?" in err) == (2, True)


def test_requests_without_a_time_wait_for_an_answer_or_not(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "t"
    rows = [{"prompt": [n], "prompt_len": 1, "output_len": 1} for n in range(3)]
    path.write_text("".join(f"{json.dumps(each)}\n" for each in rows))
    assert "3 without a time, 0 of which wait for an answer" in run("info", path)[1]


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
