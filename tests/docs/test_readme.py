"""The README is true: its commands run, its output is what comes out, what it names exists."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from scenario.geometry import model_names
from scenario.model_config import FAMILIES
from scenario.presets import PRESETS
from scenario.results import load_result
from sim.run_command import RECORD_NAME
from traces.reader import open_trace

REPOSITORY = Path(__file__).resolve().parents[2]
TEXT = (REPOSITORY / "README.md").read_text(encoding="utf-8")
CHANGELOG, SCENARIO_DOC = REPOSITORY / "CHANGELOG.md", REPOSITORY / "docs" / "scenario.md"
PAGES = [
    path
    for path in (
        REPOSITORY / "README.md",
        REPOSITORY / "CHANGELOG.md",
        *sorted(REPOSITORY.glob("docs/**/*.md")),
        *sorted(REPOSITORY.glob("benchmarks/*.md")),
        *sorted(REPOSITORY.glob("data/*.md")),
    )
    if path.exists()
]


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.M | re.S)


def _commands() -> list[str]:
    """Every line of a shell block, and every `hicache` or `python` command in the text."""
    lines = [line for block in _blocks("sh") for line in block.splitlines() if line.strip()]
    prose = re.sub(r"^```.*?^```$", "", TEXT, flags=re.M | re.S)
    return lines + re.findall(r"`((?:hicache|python) [^`]+)`", prose)


REPLAYS = [
    each
    for each in _commands()
    if each.startswith(("hicache replay ", "hicache trace ", "hicache compare ", "hicache report "))
    and "--help" not in each
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a reader would work: the project's data, a trace of their own, a place for results."""
    here = tmp_path_factory.mktemp("reader")
    (here / "data").mkdir()
    for name in ("demo.toml", "agents.jsonl"):
        (here / "data" / name).symlink_to(REPOSITORY / "data" / name)
    # Shorter than theirs, in the format of the README's example row.
    lines = (REPOSITORY / "data" / "agents.jsonl").read_text().splitlines()[:400]
    (here / "mine.jsonl").write_text("\n".join(lines) + "\n")
    return here


def _environment() -> dict[str, str]:
    """A reader's: with the tools on the path, and the compiled engine where there is one."""
    found = {key: value for key, value in os.environ.items() if key != "HICACHE_COMPILED"}
    return {**found, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def _run(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        shlex.split(command, comments=True),
        cwd=cwd,
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_every_replay_command_runs_and_then_the_python_does(folder: Path) -> None:
    assert len(REPLAYS) >= 5
    for command in REPLAYS:
        done = _run(command, folder)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        if command.startswith("hicache replay "):
            assert "TTFT" in done.stdout or "untimed" in done.stdout
    assert (folder / "results" / "mine" / "timeline.json").exists()
    one, several = _blocks("python")
    for block, lines in ((one, 1), (several, 5)):
        done = subprocess.run(
            [sys.executable, "-c", block],
            cwd=folder,
            env=_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert len(done.stdout.splitlines()) == lines, done.stdout


def test_the_other_commands_exist(folder: Path) -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    for command in _commands():
        if command in REPLAYS:
            continue
        words = shlex.split(command, comments=True)
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", makefile, re.M), command
        elif words[:2] == ["python", "-m"]:
            assert importlib.util.find_spec(words[2]) is not None, command
            assert _run(f"python -m {words[2]} {words[3]} --help", folder).returncode == 0, command
        elif words[0] == "python":
            assert (REPOSITORY / words[1]).exists(), command
        else:
            assert words[0] == "hicache", command
            assert _run(command, folder).returncode == 0, command


def test_the_example_row_is_a_trace(tmp_path: Path) -> None:
    (row,) = _blocks("json")
    (tmp_path / "row.jsonl").write_text(row)
    (request,) = open_trace(tmp_path / "row.jsonl").requests(64)
    assert (request.prompt_tokens, request.output_tokens) == (1100, 52)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} names {target}"


def test_what_it_names_is_there(folder: Path) -> None:
    assert (
        _run(
            "hicache replay mine.jsonl -q --save-record --timeline --interval --draws 2 --out all",
            folder,
        ).returncode
        == 0
    )
    made = {path.name for path in (folder / "all").iterdir()}
    table = TEXT.split("## The result")[1].split("```")[0]
    assert set(re.findall(r"^\| `(\S+)` \|", table, re.M)) == made
    assert RECORD_NAME in made
    summary = load_result(folder / "all").summary
    row = next(line for line in table.splitlines() if line.startswith("| `summary.json`"))
    for name in re.findall(r"`(\w+)`", row):
        assert name in summary
    help_text = "".join(
        _run(f"hicache {name} --help", folder).stdout for name in ("replay", "compare")
    )
    ours = re.sub(r"`jupytext [^`]*`", "", TEXT)
    for flag in set(re.findall(r"(--[a-z][a-z0-9-]+)", ours)):
        assert flag in help_text, flag
    models = next(line for line in TEXT.splitlines() if line.startswith("| `--model`"))
    for name in model_names():
        assert name.removeprefix("Qwen3").removeprefix("Llama-3.1") in models
    for page in (models, *(path.read_text(encoding="utf-8") for path in (CHANGELOG, SCENARIO_DOC))):
        assert ", ".join(FAMILIES[:-1]) in " ".join(page.split())
        assert FAMILIES[-1] in page
    for preset in PRESETS:
        assert preset in TEXT or preset == "mini-hicache"


def test_plots_are_small() -> None:
    plots = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", TEXT)
    assert plots
    for plot in plots:
        assert 5_000 < (REPOSITORY / plot).stat().st_size < 120_000


def _refresh() -> ModuleType:
    spec = importlib.util.spec_from_file_location("refresh", REPOSITORY / "docs" / "refresh.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_output_in_the_readme_is_output(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    assert _refresh().filled(TEXT) == TEXT, "python docs/refresh.py brings README.md up to date"
