"""Every notebook runs from top to bottom in a fresh kernel, and one as a script; none keeps
outputs, and what they show is small.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import jupytext
import pytest
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
# How many figures each shows, and what it must say.
SHOWN = {
    "replay_a_trace.py": (6, r"116,252,997 prompt tokens, of which 92\.0% can be hit"),
    "policy_ab.py": (3, r"never is worse than cost: "),
    "host_memory.py": (2, r"at 60 GiB LRU hits 57\.7% of the pages"),
    "is_l3_worth_it.py": (9, r"--- mini-group-b\ncost is better than no L3: "),
    "simulation_against_hardware.py": (5, r"of \d+ choices were right"),
    "write_a_policy.py": (4, r"ShortReads (is|against) "),
}
MOST_BYTES = 600_000


@pytest.fixture
def fastest_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook runs as a user runs it: on the compiled engine, where there is one."""
    monkeypatch.delenv("HICACHE_COMPILED", raising=False)


def test_every_notebook_is_here_and_a_pair() -> None:
    assert sorted(path.name for path in NOTEBOOKS.glob("*.py")) == sorted(SHOWN)
    for path in NOTEBOOKS.glob("*.py"):
        notebook = jupytext.read(path)
        assert all(not cell.get("outputs") for cell in notebook.cells)
        assert notebook.metadata["jupytext"]["formats"] == "ipynb,py:percent"


@pytest.mark.slow
@pytest.mark.usefixtures("fastest_engine")
@pytest.mark.parametrize("name", SHOWN)
@pytest.mark.filterwarnings("default")  # the kernel's libraries warn of each other
def test_it_runs_and_shows_what_it_should(name: str) -> None:
    notebook = jupytext.read(NOTEBOOKS / name)
    resources = {"metadata": {"path": str(NOTEBOOKS)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    outputs = [
        output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs
    ]
    figures = [output for output in outputs if "image/png" in output.get("data", {})]
    count, said = SHOWN[name]
    assert len(figures) == count
    texts = "".join(output["text"] for output in outputs if output.get("name") == "stdout")
    assert re.search(said, texts)
    assert [output for output in outputs if output.get("name") == "stderr"] == []
    assert len(str(outputs)) < MOST_BYTES


@pytest.mark.slow
@pytest.mark.usefixtures("fastest_engine")
def test_it_runs_as_a_script_from_any_folder(tmp_path: Path) -> None:
    without_display = {key: value for key, value in os.environ.items() if key != "DISPLAY"}
    done = subprocess.run(
        [sys.executable, NOTEBOOKS / "policy_ab.py"],
        cwd=tmp_path,
        env=without_display,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "TTFT, p99 (ms)" in done.stdout
    saved = [line.split(": ")[1] for line in done.stdout.splitlines() if line.startswith("figure")]
    assert len(saved) == SHOWN["policy_ab.py"][0]
    assert all(Path(file).is_file() for file in saved)
    assert list(tmp_path.iterdir()) == []
