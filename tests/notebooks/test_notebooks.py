"""Every notebook runs from top to bottom, in a fresh kernel and as a script; none keeps outputs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jupytext
import pytest
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
# How many figures each shows.
FIGURES = {"policy_ab.py": 3}


def test_every_notebook_is_here() -> None:
    assert sorted(path.name for path in NOTEBOOKS.glob("*.py")) == sorted(FIGURES)
    for path in NOTEBOOKS.glob("*.py"):
        assert all(not cell.get("outputs") for cell in jupytext.read(path).cells)


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.filterwarnings("default")  # the kernel's libraries warn of each other
def test_it_runs_and_shows_its_figures(name: str) -> None:
    notebook = jupytext.read(NOTEBOOKS / name)
    resources = {"metadata": {"path": str(NOTEBOOKS)}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources).execute()
    outputs = [
        output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs
    ]
    figures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(figures) == FIGURES[name]
    assert [output for output in outputs if output.get("name") == "stderr"] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_it_runs_as_a_script_from_any_folder(name: str, tmp_path: Path) -> None:
    without_display = {key: value for key, value in os.environ.items() if key != "DISPLAY"}
    done = subprocess.run(
        [sys.executable, NOTEBOOKS / name],
        cwd=tmp_path,
        env=without_display,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "TTFT, p99 (ms)" in done.stdout
    saved = [line.split(": ")[1] for line in done.stdout.splitlines() if line.startswith("figure")]
    assert len(saved) == FIGURES[name]
    assert all(Path(file).is_file() for file in saved)
    assert list(tmp_path.iterdir()) == []
