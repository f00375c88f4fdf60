"""docs/run.md: its example runs without a GPU, and gives what it says."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from scenario.results import load_result

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "run.md").read_text(encoding="utf-8")


def _block(language: str) -> str:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.M | re.S)[-1]


def test_the_example_without_a_gpu_runs_and_is_repeated(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "tiny-model.json").write_text(_block("json"))
    (tmp_path / "small.toml").write_text(_block("toml"))
    for command in _block("sh").splitlines():
        words = shlex.split(command)
        assert words[0] == "hicache"
        done = subprocess.run(
            [Path(sys.executable).parent / "hicache", *words[1:]],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    first, again = load_result(str(tmp_path / "first")).summary, tmp_path / "again"
    tokens = first["cached_tokens_total"]
    assert f"{tokens['storage']:,} of {first['prompt_tokens']:,} prompt tokens" in TEXT
    assert tokens["device"] == tokens["host"] == 0
    rows = [folder / "requests.parquet" for folder in (tmp_path / "first", again)]
    assert rows[0].read_bytes() == rows[1].read_bytes()
