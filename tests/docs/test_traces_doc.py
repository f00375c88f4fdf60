"""docs/traces.md is true: its commands run, its examples are what it says, its tables are whole."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from traces.reader import open_trace, readers
from traces.workloads import WORKLOADS
from traces.writers import WRITER_NAMES

REPOSITORY = Path(__file__).resolve().parents[2]
TEXT = (REPOSITORY / "docs" / "traces.md").read_text(encoding="utf-8")
# (section, language, text) of each fenced block.
BLOCKS = [
    (section.partition("\n")[0].strip(), language, block)
    for section in re.split(r"^##+ ", TEXT, flags=re.M)
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```$", section, re.M | re.S)
]
EXAMPLES = [(section, text) for section, language, text in BLOCKS if language in ("json", "text")]
FORMATS = {
    "mooncake": "mooncake",
    "hicache": "hicache",
    "ragpulse": "ragpulse",
    "weka": "weka",
    "bailian": "bailian",
    "lmcache": "lmcache",
    "azure and burstgpt": ("azure", "burstgpt"),
    "hisim": "hisim",
    "sglang": "sglang-log",
    "token-ids": "token-ids",
    "Texts": ("sharegpt", "openai-log", "loogle"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a reader would work: the project's data, and room for traces of their own."""
    here = tmp_path_factory.mktemp("reader")
    (here / "data").mkdir()
    (here / "data" / "agents.jsonl").symlink_to(REPOSITORY / "data" / "agents.jsonl")
    return here


def test_every_command_runs_in_the_order_of_the_page(folder: Path) -> None:
    commands = [
        line for _, language, text in BLOCKS if language == "sh" for line in text.splitlines()
    ]
    assert len(commands) >= 8
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command in commands:
        done = subprocess.run(
            shlex.split(command),
            cwd=folder,
            env={**os.environ, "PATH": tools},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        assert done.stdout
        assert done.stderr == ""
    made = {path.name for path in folder.iterdir() if path.is_file()}
    assert len(made) == 7
    assert len(list(open_trace(folder / "share.jsonl.gz").requests(64))) == 64


def test_the_python_runs() -> None:
    (code,) = (text for _, language, text in BLOCKS if language == "python")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert re.fullmatch(r"mooncake 6878 0\.\d{3}\n", done.stdout)


def _tokenizer(path: Path) -> str:
    tokenizers: Any = pytest.importorskip("tokenizers", reason="the extra `text` is not installed")
    words = tokenizers.models.WordLevel({"[UNK]": 0}, unk_token="[UNK]")
    made = tokenizers.Tokenizer(words)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(path))
    return str(path)


@pytest.mark.parametrize("place", range(len(EXAMPLES)))
def test_every_example_is_a_trace_of_its_section(tmp_path: Path, place: int) -> None:
    section, text = EXAMPLES[place]
    names = FORMATS[section]
    if not isinstance(names, str):
        names = names[[each for each in EXAMPLES if each[0] == section].index(EXAMPLES[place])]
    path = tmp_path / "example"
    path.write_text(text)
    needs_tokenizer = section == "Texts"
    trace = open_trace(path, tokenizer=_tokenizer(tmp_path / "t.json") if needs_tokenizer else "")
    assert trace.format == names
    rows = [row for batch in trace.stream().batches() for row in batch.rows]
    assert len(rows) == (2 if section == "hicache" else 1)


def test_the_tables_are_whole() -> None:
    formats = TEXT.split("## Formats")[1].split("###")[0]
    assert re.findall(r"^\| \[`([\w-]+)`\]", formats, re.M) == [each.name for each in readers()]
    for name in WRITER_NAMES:
        assert f"`{name}`" in TEXT.split("## convert")[1].split("## slice")[0]
    workloads = TEXT.split("## generate")[1].split("## anonymize")[0]
    assert re.findall(r"^\| `([\w-]+)`", workloads, re.M) == list(WORKLOADS)
