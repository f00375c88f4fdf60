"""What a sweep runs: scenarios over traces over a grid of options, each combination one cell.

    scenarios   none, or TOML files       traces   none, or files
    --grid tiers.l2=0,1x,2x --grid restore.policy=cost,always              3 x 2 cells of each

Every cell is a whole scenario, made and checked before anything runs: one that cannot be is an
InputError that names it. A cell's digest says what its figures depend on: scenario, contents of the
trace, machine, store, model, classes of the user's, and the sources of this program. So figures are
kept and used again exactly as long as they are those that a run would give. Refuses to run
anything.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product

import msgspec

from hicache.errors import InputError
from scenario.geometry import load_geometry
from scenario.load import load_scenario, parse_assignments
from scenario.names import nearest
from scenario.profile import dump_profile, load_profile
from scenario.records import Scenario, dump_toml, value_types, values
from scenario.resolve import resolve
from scenario.sizes import Size
from scenario.stores import dump_store, load_store
from sim.own_policy import OwnClass, owned, without_own

MOST_CELLS = 100_000
# What a run's figures are computed by. `hw`, `calibrate` and `cli` have no part in a simulation.
_PACKAGES = ("hicache", "traces", "scenario", "report", "sim")
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

Options = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Cell:
    """One scenario of a sweep. `options` is what tells it from the others, by dotted key."""

    number: int
    scenario: Scenario
    options: Options
    # The scenario file that it is made of, as it was given; "" without one.
    file: str
    digest: str
    # What takes the place of built-in policies, whose stand-ins `scenario` holds.
    own: tuple[OwnClass, ...] = ()

    @property
    def label(self) -> str:
        """What messages call it."""
        said = ", ".join(f"{key}={value}" for key, value in self.options.items())
        return f"scenario {self.number + 1} ({said})" if said else f"scenario {self.number + 1}"


@dataclass(frozen=True, slots=True)
class Grid:
    """What was asked for. `axes`: each key's values, as texts are read by `--set`."""

    scenarios: Sequence[str] = ()
    traces: Sequence[str] = ()
    axes: Mapping[str, Sequence[object]] = field(default_factory=dict)
    common: Options = field(default_factory=dict)


def axis_of(text: str) -> tuple[str, list[object]]:
    """Key and values of "KEY=V1,V2,...". Raises InputError."""
    key, equals, listed = text.partition("=")
    key = key.strip()
    written = [each.strip() for each in listed.split(",")]
    if not equals or not key or not all(written):
        raise InputError(f"--grid {text!r}: write KEY=V1,V2,... as in tiers.l2=0,1x,2x")
    if key not in value_types():
        raise InputError(f"--grid {text!r}: unknown key {key}{nearest(key, value_types())}")
    twice = next((each for place, each in enumerate(written) if each in written[:place]), None)
    if twice is not None:
        raise InputError(f"--grid {text!r}: {twice} is there twice")
    return key, [parse_assignments([f"{key}={each}"])[key] for each in written]


def cells_of(grid: Grid) -> list[Cell]:
    """Every cell, in the order of scenario files, traces and the grid; its last axis runs fastest.

    Each is checked as far as that is possible without running it. Raises InputError.
    """
    for each in (_content, _profile, _profile_text, _geometry, _store):
        each.cache_clear()
    made = [
        (file, *_scenario(file, {**grid.common, **dict(chosen)}))
        for file, chosen in _combinations(grid)
    ]
    told = _telling(grid, [scenario for _, scenario, _ in made])
    cells: list[Cell] = []
    for number, (file, scenario, own) in enumerate(made):
        by_key = dict(values(scenario)) | {each.key: each.name for each in own}
        options = {key: _plain(by_key[key]) for key in told}
        cells.append(Cell(number, scenario, options, file, cell_digest(scenario, own), own))
    return cells


def _combinations(grid: Grid) -> Iterator[tuple[str, list[tuple[str, object]]]]:
    count = max(1, len(grid.scenarios)) * max(1, len(grid.traces))
    for key, listed in grid.axes.items():
        if key in grid.common:
            raise InputError(f"--grid {key}: is given by --set, too; leave one of them out")
        count *= len(listed)
    if count > MOST_CELLS:
        raise InputError(
            f"the grid has {count:,} scenarios; at most {MOST_CELLS:,} are run at once"
        )
    if grid.traces and "trace.path" in grid.axes:
        raise InputError("--grid trace.path: traces are named as arguments, too; leave one out")
    traces = [[("trace.path", trace)] for trace in grid.traces] or [[]]
    axes = [[(key, each) for each in listed] for key, listed in grid.axes.items()]
    for file, trace, *chosen in product(grid.scenarios or [""], traces, *axes):
        yield str(file), [*trace, *chosen]  # type: ignore[list-item]


def _scenario(file: str, options: Options) -> tuple[Scenario, tuple[OwnClass, ...]]:
    said = ", ".join(f"{key}={value}" for key, value in options.items())
    try:
        plain, own = without_own(options)
        scenario = load_scenario(file or None, plain)
        check_cell(scenario)
        owns = owned(own, scenario.mode)
    except InputError as error:
        where = f"{file}: " if file and not str(error).startswith(file) else ""
        raise InputError(f"{where}{error}{f' (in {said})' if said else ''}") from None
    return scenario, owns


def check_cell(scenario: Scenario) -> None:
    """Raises InputError for what a run would refuse before its first request."""
    path = scenario.trace.path
    if not path:
        raise InputError("no trace was given: name a file, or trace.path in the scenario")
    if path == "-":
        raise InputError("standard input cannot be read again for each scenario; name a file")
    if not os.path.exists(path):
        raise InputError(f"{path}: No such file or directory")
    resolve(scenario, _profile(scenario.machine.profile), _geometry(scenario.model.name))


def _telling(grid: Grid, scenarios: Sequence[Scenario]) -> list[str]:
    """The keys that tell cells apart, in the file's order: those of the grid, and whatever differs
    between scenario files.
    """
    usual = dict(values(scenarios[0]))
    told = set(grid.axes) | ({"trace.path"} if len(grid.traces) > 1 else set())
    if len(grid.scenarios) > 1:
        for scenario in scenarios:
            told |= {key for key, value in values(scenario) if value != usual[key]}
    return [key for key in usual if key in told]


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Size) else value


def cell_digest(scenario: Scenario, own: Sequence[OwnClass] = ()) -> str:
    """SHA-256 of all that the figures of `scenario` depend on, in hexadecimal. Of the classes that
    take the place of its policies that is their names and their files; not what these import.
    """
    parts = [
        dump_toml(scenario),
        _content(scenario.trace.path),
        _content(scenario.trace.tokenizer) if scenario.trace.tokenizer else "",
        _profile_text(scenario.machine.profile),
        msgspec.json.encode(_geometry(scenario.model.name)).decode(),
        dump_store(_store(scenario.machine.store)) if scenario.machine.store else "",
        sources_digest(),
        *(f"{each.key} {each.name.rpartition(':')[2]} {each.sha256}" for each in own),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@cache
def sources_digest() -> str:
    """SHA-256 of the sources that a simulation runs, in hexadecimal: the program's version, but
    also right while it is worked on.
    """
    found = hashlib.sha256()
    for package in _PACKAGES:
        for folder, names, files in os.walk(os.path.join(_ROOT, package)):
            names.sort()
            for name in sorted(each for each in files if each.endswith(".py")):
                path = os.path.join(folder, name)
                found.update(f"{os.path.relpath(path, _ROOT)}\0".encode())
                with open(path, "rb") as opened:
                    found.update(opened.read())
    return found.hexdigest()


_profile = cache(load_profile)
_geometry = cache(load_geometry)
_store = cache(load_store)


@cache
def _profile_text(name: str) -> str:
    return dump_profile(_profile(name))


@cache
def _content(path: str) -> str:
    """SHA-256 of a file; of a folder, of its files' names and contents."""
    try:
        if not os.path.isdir(path):
            with open(path, "rb") as opened:
                return hashlib.file_digest(opened, "sha256").hexdigest()
        files = [each for each in sorted(os.listdir(path)) if os.path.isfile(f"{path}/{each}")]
        listed = "".join(f"{name} {_content(os.path.join(path, name))}\n" for name in files)
        return hashlib.sha256(listed.encode()).hexdigest()
    except OSError as error:
        raise InputError(f"{path}: cannot be opened: {error.strerror}") from None
