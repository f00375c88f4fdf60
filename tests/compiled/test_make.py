"""The Makefile, with tools that only say their names: what fails is a failure and is said, and
Ctrl-C leaves nothing behind.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
TOOLS = ("python", "pip", "pytest", "ruff", "pyright", "lint-imports")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the Makefile and an environment; its name holds a space."""
    if shutil.which("make") is None:
        pytest.skip("there is no make")
    folder = tmp_path / "a project"
    (folder / ".venv/bin").mkdir(parents=True)
    shutil.copy(REPOSITORY / "Makefile", folder)
    (folder / "pyproject.toml").touch()
    for name in TOOLS:
        tool(folder, name, "exit 0")
    for mark in (".installed", ".installed-dev"):
        (folder / ".venv" / mark).touch()
    return folder


def tool(folder: Path, name: str, does: str) -> None:
    path = folder / ".venv/bin" / name
    path.write_text(f'#!/bin/sh\necho "said by {name} $*"\n{does}\n')
    path.chmod(0o755)


def make(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    without = {name: text for name, text in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.Popen(
        ["make", "PYTHON=true", *arguments],
        cwd=folder, env=without, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


@pytest.mark.parametrize("fails", ["", "ruff", "pytest", "pyright", "lint-imports"])
def test_whatever_fails_is_a_failure_and_types_and_tests_are_both_said(project, fails):
    if fails:
        tool(project, fails, "exit 3")
    asked = make(project, "test")
    said = asked.communicate()[0]
    assert (asked.returncode == 0) == (not fails), said
    if fails != "ruff":
        assert said.index("said by pytest") < said.index("said by pyright")
    assert not list(project.glob(".venv/*.txt"))


def test_of_two_at_once_each_says_what_its_own_types_did(project):
    tool(
        project,
        "pyright",
        'sleep 0.5; mkdir taken 2>/dev/null && { echo "bad types"; exit 3; }; exit 0',
    )
    both = [make(project, "test") for _ in range(2)]
    said = {each.communicate()[0].count("bad types"): each.returncode for each in both}
    assert said == {0: 0, 1: 2}


def test_an_environment_that_was_begun_is_made_from_the_start(project):
    shutil.rmtree(project / ".venv")
    tools = "case $* in *dev*) exit 1;; esac"
    (project / ".venv/bin").mkdir(parents=True)
    for name in TOOLS:
        tool(project, name, tools if name == "pip" else "exit 0")
    for _ in range(2):
        asked = make(project, "style")
        said = asked.communicate()[0]
        assert asked.returncode == 2
        assert "said by ruff" not in said
        assert said.count("said by pip") == 2
    tool(project, "pip", "exit 0")
    asked = make(project, "style")
    assert "said by ruff" in asked.communicate()[0]
    assert asked.returncode == 0


def test_ctrl_c_ends_the_compiling_beside_the_installation_and_it_tidies_up(tmp_path):
    if find_spec("mypyc") is None:
        pytest.skip("mypyc is not installed (the extra `fast`)")
    script, folder = REPOSITORY / "scripts/compile_engine.py", tmp_path / "build/engine"
    begun = subprocess.Popen(
        # As a shell starts what runs beside another command.
        ["/bin/sh", "-c", f'trap "" INT; exec "{sys.executable}" "{script}" --folder "{folder}"'],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    assert begun.stdout is not None
    try:
        first = begun.stdout.readline()
        if "No compiled engine" in first:
            pytest.skip(first)
        while not list(folder.parent.glob("making-*")):
            assert begun.poll() is None, begun.stdout.read()
            time.sleep(0.01)
        os.killpg(begun.pid, signal.SIGINT)
        assert begun.communicate(timeout=20)[0] == ""
    finally:
        if begun.poll() is None:
            os.killpg(begun.pid, signal.SIGKILL)
    assert begun.returncode == 130
    assert list(folder.parent.iterdir()) == []
