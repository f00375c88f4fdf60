"""Policies of a user's own in a sweep: they do what the built-in ones do; figures are kept by the
bytes of their file.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from compare_runs import OPTIONS, POLICIES, TIERS

from hicache.errors import InputError
from sim.own_policy import KEYS, OwnClass, load_class, owned, without_own
from sim.sweep import Cell, Grid, axis_of, cells_of
from sim.sweep_cell import Done, job_of, run_job
from sim.sweep_pool import Lost, end_workers, run_here
from traces.generator import write_trace


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("own") / "t.jsonl"
    write_trace(OPTIONS, path)
    return str(path)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's policies, in the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    path = tmp_path / "mine.py"
    path.write_text(POLICIES)
    return path


def cells(trace: str, *grid: str, **common: object) -> list[Cell]:
    return cells_of(Grid((), [trace], dict(map(axis_of, grid)), {**TIERS, **common}))


def run(cell: Cell) -> Done:
    return run_job(job_of(cell.number, cell.scenario, own=cell.own))


def figures(done: Done) -> dict[str, object]:
    assert done.error == ""
    return {key: value for key, value in done.figures.items() if key != "warnings"}


def test_they_do_what_the_built_in_ones_do(trace: str, file: Path) -> None:
    for grid in (
        "restore.policy=always,mine.py:Always,mine:Always",
        "cache.eviction=lfu,mine.py:lfu,mine:lfu",
    ):
        found = cells(trace, grid, **{"tiers.l2": "1x"})
        assert [list(cell.options.values()) for cell in found] == [
            [each] for each in grid.partition("=")[2].split(",")
        ]
        first, *others = (run(cell) for cell in found)
        for done in others:
            assert figures(done) == figures(first)
            assert "own_policy: " in done.figures["warnings"]
        assert first.figures["evicted_tokens_total.device"] > 0
        assert first.figures["cached_tokens_total.host"] > 0


def test_a_result_says_which_class_it_ran_with(trace: str, file: Path, tmp_path: Path) -> None:
    (cell,) = cells(trace, "restore.policy=mine.py:Always")
    job = job_of(0, cell.scenario, str(tmp_path / "r"), own=cell.own)
    assert run_job(job).error == ""
    text = (tmp_path / "r" / "scenario.toml").read_text()
    assert text.startswith("# restore.policy was mine.py:Always, a class of the user's\n")


def test_figures_are_kept_by_the_bytes_of_the_file(trace: str, file: Path) -> None:
    def digests() -> list[str]:
        return [cell.digest for cell in cells(trace, "restore.policy=cost,mine.py:Always")]

    before = digests()
    assert digests() == before
    file.rename("other.py")
    (moved,) = cells(trace, "restore.policy=other.py:Always")
    assert moved.digest == before[1]
    # As long as it was, and perhaps as old: a compiled form would be taken for that of the new one.
    goal, other = "max(hits.host, hits.storage)", "max(hits.host, hits.device)"
    Path("mine.py").write_text(POLICIES.replace(goal, other))
    after = digests()
    assert after[0] == before[0]
    assert after[1] != before[1]
    (cell,) = cells(trace, "restore.policy=mine.py:Always")
    least = run(cell)
    assert figures(least) != figures(run(moved)), "the new one was run"


def test_a_file_that_changes_meanwhile_is_an_error_of_its_rows(trace: str, file: Path) -> None:
    plain, own = cells(trace, "restore.policy=cost,mine.py:Always")
    file.write_text(POLICIES + "\n")
    assert figures(run(plain))
    assert "its file is another than when this began" in run(own).error


def test_workers_find_it_from_any_folder_and_its_errors_are_rows(
    trace: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = cells(trace, "restore.policy=always,mine.py:Always,mine:Always,mine:NotAChoice")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    jobs = [job_of(cell.number, cell.scenario, own=cell.own) for cell in found]
    try:
        done = {each.number: each for each in run_here(jobs, 2, Lost())}
    finally:
        end_workers()
    assert figures(done[1]) == figures(done[2]) == figures(done[0])
    assert "it said 7: it must be a Choice" in done[3].error


@pytest.mark.parametrize(
    ("grid", "why"),
    [
        ("restore.policy=mine.py:Alway", r"mine.py has no Alway \(did you mean Always\?\)"),
        ("restore.policy=cost,gone.py:X", r"there is no module gone.py in .*gone.py:X\)$"),
        ("restore.policy=mine:NoCall", "has no __call__ that takes a Match"),
        ("cache.eviction=mine:NeedsMore", r"is made with \(\), and takes"),
    ],
)
def test_one_that_cannot_be_is_refused_before_anything_runs(
    trace: str, file: Path, grid: str, why: str
) -> None:
    with pytest.raises(InputError, match=why):
        cells(trace, grid)


def test_untimed_runs_ask_no_restore_policy(trace: str, file: Path) -> None:
    with pytest.raises(InputError, match="mode is untimed, and a run in which nothing takes time"):
        cells(trace, "restore.policy=mine:Always", mode="untimed")
    (cell,) = cells(trace, "cache.eviction=mine:lru", mode="untimed")
    assert figures(run(cell))


def test_options_and_classes_are_told_apart(file: Path) -> None:
    options = {"seed": 3, "restore.policy": "mine:Always", "cache.eviction": "lfu"}
    plain, own = without_own(options)
    assert plain == {"seed": 3, "restore.policy": "cost", "cache.eviction": "lfu"}
    assert own == {"restore.policy": "mine:Always"}
    assert set(own) <= set(KEYS)
    (each,) = owned(own, "timed")
    assert each == OwnClass("restore.policy", "mine:Always", os.getcwd(), each.sha256)
    assert load_class(each.name, each.key, each.folder).__name__ == "Always"
