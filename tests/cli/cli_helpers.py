"""What the tests of the command share: the installed command, run as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SHIPPED_TRACE = REPOSITORY / "data" / "agents.jsonl"
COMMAND = str(Path(sys.executable).with_name("hicache"))
# L1 holds a few prompts of the small trace, so that L2 and L3 are read and written.
SMALL_TIERS = ("--l1", "40000tokens", "--l2", "2x", "--l3", "10x", "--policy", "always")
RESULT_FILES = ("requests.parquet", "scenario.toml", "summary.json")


def hicache(
    *arguments: str | Path,
    cwd: Path,
    stdin: bytes = b"",
    env: dict[str, str] | None = None,
    command: Sequence[str] = (COMMAND,),
) -> subprocess.CompletedProcess[str]:
    """Run the command in `cwd`; never raises for its exit code. Standard error and output as
    text.
    """
    done = subprocess.run(
        [*command, *map(str, arguments)],
        cwd=cwd,
        input=stdin,
        env={**os.environ, "COLUMNS": "120", **(env or {})},
        capture_output=True,
        timeout=120,
        check=False,
    )
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


def line(ids: Iterable[int], tokens: int, timestamp: float = 0, output: int = 5) -> str:
    """One line of Mooncake's format, without its end."""
    row = {
        "timestamp": timestamp,
        "input_length": tokens,
        "output_length": output,
        "hash_ids": list(ids),
    }
    return json.dumps(row)


def write_lines(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{each}\n" for each in lines))
    return path


def files_under(folder: Path) -> dict[str, bytes]:
    """Every file below `folder`, hidden ones too, with its bytes."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"(folder)"
        for path in sorted(folder.rglob("*"))
    }


def processes_of_session(session: int) -> list[str]:
    """The commands of all processes of a session (Linux; elsewhere nothing is found)."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, rest = stat.read_text().rpartition(") ")
        except OSError:
            continue  # it has ended meanwhile
        if int(rest.split()[3]) == session and rest[0] != "Z":
            found.append(head)
    return found


def refusal(
    arguments: Sequence[str | Path],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> str:
    """The one line in which the command, run in `folder`, refuses `arguments`; it must leave every
    file there as it was and print nothing else.
    """
    from cli.main import run

    before = files_under(folder)
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.argv", ["hicache", *map(str, arguments)])
    assert run() == 2
    said, complained = capsys.readouterr()
    assert said == ""
    assert complained.startswith("hicache: error: ")
    assert complained.count("\n") == 1
    assert files_under(folder) == before
    return complained
