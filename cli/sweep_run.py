"""What `hicache sweep` does with its arguments. Thin: it parses, calls, writes and prints."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from cli.cells_bar import CellsBar
from cli.sweep_table import print_cells, print_sweep
from hicache.errors import InputError
from scenario.load import parse_assignments
from scenario.results import check_target
from sim.sweep import Cell, Grid, axis_of, cells_of, sources_digest
from sim.sweep_cell import Done, Figures, Job, job_of
from sim.sweep_pool import Lost, cores, end_workers, run_here, run_on_ray, start_workers
from sim.sweep_store import (
    Journal,
    check_out,
    check_same_trace,
    known_rows,
    prepare_to_write,
    write_table,
)

INTERRUPTED = 130
SOME_FAILED = 1


@dataclass(slots=True)
class SweepArguments:
    """The command's arguments as given; texts are not looked at yet."""

    inputs: Sequence[str]
    grid: Sequence[str] = ()
    assignments: Sequence[str] = ()
    out: str = "sweep.parquet"
    folders: str | None = None
    jobs: int | None = None
    ray: str | None = None
    fresh: bool = False
    dry_run: bool = False
    quiet: bool = False
    force: bool = False


@dataclass(slots=True)
class _State:
    """What is known of the cells, by digest."""

    figures: dict[str, Figures] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    again: int = 0  # cells whose figures were there already
    interrupted: bool = False
    lost: Lost = field(default_factory=Lost)


def run_sweep(given: SweepArguments) -> int:
    """Run what is not done, write the table. Returns the exit code: 0; 1 where scenarios failed,
    whose rows say why; 130 where Ctrl-C ended it. Raises InputError for what cannot be, and where
    every scenario failed.
    """
    cells = cells_of(_grid(given))
    if given.dry_run:
        print_cells(cells)
        return 0
    workers = _workers(given)
    try:
        if given.ray is None:
            start_workers(min(workers, len(cells)))  # before pyarrow, which has threads
        return _run_what_is_new(given, workers, cells)
    finally:
        end_workers()


def _run_what_is_new(given: SweepArguments, workers: int, cells: Sequence[Cell]) -> int:
    check_out(given.out, force=given.force)
    folders = _folders(cells, given.folders)
    state = _State()
    with Journal(given.out) as journal:
        if given.fresh:
            journal.remove()
        else:
            _take_known(state, cells, {**known_rows(given.out), **journal.read()}, folders)
        try:
            _run(given, workers, cells, folders, state, journal)
        except KeyboardInterrupt:
            state.interrupted = True
            end_workers()
        if state.figures or not state.interrupted:
            _write(given.out, cells, state, folders)
        if not state.interrupted:
            journal.remove()
    return _say(given, cells, state)


def _grid(given: SweepArguments) -> Grid:
    axes: dict[str, list[object]] = {}
    for text in given.grid:
        key, listed = axis_of(text)
        if key in axes:
            raise InputError(f"--grid {text!r}: {key} is given twice; write all values in one")
        axes[key] = listed
    scenarios = [each for each in given.inputs if each.endswith(".toml")]
    traces = [each for each in given.inputs if not each.endswith(".toml")]
    for name in traces + scenarios:
        if given.inputs.count(name) > 1:
            raise InputError(f"{name} is named twice")
    return Grid(scenarios, traces, axes, parse_assignments(given.assignments))


def _workers(given: SweepArguments) -> int:
    if given.jobs is not None and given.jobs < 1:
        raise InputError(f"--jobs is {given.jobs}: it must be at least 1")
    if given.jobs is not None and given.ray not in (None, "local"):
        raise InputError("--jobs is about this machine: how much runs on a cluster, Ray decides")
    return given.jobs or cores()


def _folders(cells: Sequence[Cell], folder: str | None) -> dict[int, str]:
    if folder is None:
        return {}
    digits = len(str(len(cells)))
    places = {
        cell.number: os.path.join(folder, f"{cell.number + 1:0{digits}}-{cell.digest[:8]}")
        for cell in cells
    }
    for each in places.values():
        check_target(each)
    return places


def _take_known(
    state: _State,
    cells: Sequence[Cell],
    known: Mapping[str, Figures],
    folders: Mapping[int, str],
) -> None:
    for cell in cells:
        folder = folders.get(cell.number)
        there = folder is None or os.path.exists(os.path.join(folder, "summary.json"))
        if cell.digest in known and there:
            state.again += 1
            state.figures[cell.digest] = known[cell.digest]


def _run(
    given: SweepArguments,
    workers: int,
    cells: Sequence[Cell],
    folders: Mapping[int, str],
    state: _State,
    journal: Journal,
) -> None:
    jobs = list(_jobs(given, cells, folders, state))
    if not jobs:
        return
    contents: dict[str, str] = {}
    if given.ray is None:
        results = run_here(jobs, workers, state.lost)
    else:
        results = run_on_ray(jobs, given.ray, workers)
    with CellsBar("sweep", len(cells), len(cells) - len(jobs)) as bar, closing(results):
        for done in results:
            if not state.figures and (workers > 1 or given.ray):
                prepare_to_write()
            _keep(done, cells, state, journal, contents)
            bar.advance()


def _keep(
    done: Done,
    cells: Sequence[Cell],
    state: _State,
    journal: Journal,
    contents: dict[str, str],
) -> None:
    digest = cells[done.number].digest
    if done.error:
        state.errors[digest] = done.error
        return
    check_same_trace(cells, done, contents)
    state.figures[digest] = done.figures
    journal.add(digest, done.figures)


def _jobs(
    given: SweepArguments, cells: Sequence[Cell], folders: Mapping[int, str], state: _State
) -> Iterator[Job]:
    """What is to be run: of equal scenarios the first, unless each is to have its folder."""
    sources = sources_digest() if given.ray else ""
    taken: set[str] = set()
    for cell in cells:
        if cell.digest in state.figures or (cell.digest in taken and not folders):
            continue
        taken.add(cell.digest)
        folder = os.path.abspath(folders[cell.number]) if folders else ""
        yield job_of(cell.number, cell.scenario, folder, sources, cell.own)


def _write(out: str, cells: Sequence[Cell], state: _State, folders: Mapping[int, str]) -> None:
    if not state.figures and state.errors:
        reason = next(iter(state.errors.values()))
        which = "" if len(cells) == 1 else f"all {len(cells)} scenarios failed; the first: "
        raise InputError(f"{which}{reason}")
    write_table(out, cells, state.figures, state.errors, folders)


def _say(given: SweepArguments, cells: Sequence[Cell], state: _State) -> int:
    if not given.quiet and state.figures:
        print_sweep(cells, state.figures, state.errors)
    done = sum(cell.digest in state.figures for cell in cells)
    failed = [cell for cell in cells if cell.digest in state.errors]
    said = [f"{done} of {len(cells)} scenarios"]
    if state.again:
        said.append(f"{state.again} of them done before")
    if state.lost.workers:
        said.append(f"{state.lost.workers} workers were killed and their scenarios run again")
    if state.figures:
        print(f"{', '.join(said)}: {given.out}")
    for cell in failed:
        print(f"{cell.label} failed: {state.errors[cell.digest]}", file=sys.stderr)
    if state.interrupted:
        kept = "the same command goes on from there" if done else "nothing was done yet"
        print(f"interrupted: {done} of {len(cells)} scenarios are done; {kept}", file=sys.stderr)
        return INTERRUPTED
    return SOME_FAILED if failed else 0
