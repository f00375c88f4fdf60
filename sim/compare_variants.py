"""What is compared with what: variants, each a scenario with options of its own, over traces.

    command line   NAME:KEY=VALUE,KEY=VALUE     NAME alone: the common options as they are
    file (TOML)    traces, scenario, [common], [variant.NAME]; paths are relative to the file

A value of `restore.policy` or `cache.eviction` may be `module:Class` (`sim.own_policy`). Nothing is
guessed: an unknown key is an InputError, as in a scenario. Refuses to run anything.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hicache.errors import InputError
from scenario.load import is_path, load_scenario, parse_assignments, read_toml
from scenario.names import nearest
from scenario.records import Scenario, value_types
from scenario.toml_values import toml_value
from sim.own_policy import KEYS, STAND_INS, check_own, is_own

_NAME = re.compile(r"[\w.+@-][\w.+@ -]*")
_COMMA = re.compile(r",(?=\s*[a-z0-9_.]+\s*=)")
_FILE_KEYS = ("traces", "scenario", "common", "variant")
_PATHS = ("trace.tokenizer", "hw.weights", "hw.l3_path", "hw.store_path")
_NAMED_OR_PATH = ("model.name", "machine.profile", "machine.store")
_AFTER_AT = ("hw.store_config",)  # text, or "@" and a path


@dataclass(frozen=True, slots=True)
class Variant:
    """`options`: dotted keys with values, over the common ones. `own`: which of `KEYS` name a class
    of the user's. `scenario`: a file in place of the common one.
    """

    name: str
    options: Mapping[str, object] = field(default_factory=dict)
    own: Mapping[str, str] = field(default_factory=dict)
    scenario: str | None = None


@dataclass(frozen=True, slots=True)
class Study:
    """Variants over traces. The first variant is the one that others are compared with."""

    traces: tuple[str, ...]
    variants: tuple[Variant, ...]
    scenario: str | None = None
    common: Mapping[str, object] = field(default_factory=dict)

    def scenario_of(self, variant: Variant, trace: str) -> Scenario:
        """What `variant` runs of `trace`. Raises InputError."""
        stand_ins = {key: STAND_INS[key] for key in variant.own}
        options = {**self.common, **variant.options, **stand_ins, "trace.path": trace}
        try:
            return load_scenario(variant.scenario or self.scenario, options)
        except InputError as error:
            raise InputError(f"variant {variant.name}: {error}") from None


def variant_of(text: str) -> Variant:
    """The variant that "NAME:KEY=VALUE,KEY=VALUE" says. Raises InputError."""
    name, _, rest = text.partition(":")
    name = name.strip()
    where = f"--variant {text!r}"
    if "=" in name:
        raise InputError(f"{where}: it must begin with a name, as in --variant 'mine:{text}'")
    assignments = [each for each in _COMMA.split(rest) if each.strip()]
    scenario, plain, own = None, [], {}
    for each in assignments:
        key, equals, value = (part.strip() for part in each.partition("="))
        if key == "scenario" and equals:
            scenario = value
        elif key in KEYS and is_own(value):
            own[key] = value
        else:
            plain.append(each)
    try:
        return _checked(Variant(name, parse_assignments(plain), own, scenario))
    except InputError as error:
        raise InputError(f"{where}: {str(error).removeprefix('command line: ')}") from None


def variants_of_key(key: str, values: Sequence[str]) -> Iterator[Variant]:
    """One variant for each value of `key`, named by it: `--policy always`."""
    for value in values:
        name = value.rpartition(":")[2] if is_own(value) else value
        if is_own(value):
            yield _checked(Variant(name, own={key: value}))
        else:
            yield _checked(Variant(name, parse_assignments([f"{key}={value}"])))


def study_of_file(path: str) -> Study:
    """The study that a TOML file describes. Raises InputError naming file and key."""
    table = read_toml(path)
    folder = os.path.dirname(os.path.abspath(path))
    for key in table:
        if key not in _FILE_KEYS:
            raise InputError(
                f"{path}: unknown key {key}{nearest(key, _FILE_KEYS)}; a comparison has "
                f"{', '.join(_FILE_KEYS)}"
            )
    traces = table.get("traces", [])
    if not isinstance(traces, list) or not all(isinstance(each, str) for each in traces):
        raise InputError(f"{path}: traces is {traces!r}: it must be a list of files")
    named = table.get("variant", {})
    if not isinstance(named, dict) or not all(isinstance(each, dict) for each in named.values()):
        raise InputError(f"{path}: variant must be tables, as [variant.always]")
    common = table.get("common", {})
    if not isinstance(common, dict):
        raise InputError(f"{path}: common must be a table: write [common]")
    where = f"{path}: [common]"
    options, own, scenario = _parts(common, folder, where)
    if own or scenario:
        key = next(iter(own), "scenario")
        raise InputError(f"{where}: {key} belongs to a variant, or, scenario, to the top")
    variants: list[Variant] = []
    for name, each in named.items():
        where = f"{path}: [variant.{name}]"
        mine, own, scenario = _parts(each, folder, where)
        try:
            variants.append(_checked(Variant(name, mine, own, scenario)))
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
    base = table.get("scenario")
    if base is not None and not isinstance(base, str):
        raise InputError(f"{path}: scenario is {base!r}: it must be a file")
    return Study(
        tuple(_located(each, folder) for each in traces),
        tuple(variants),
        _located(base, folder) if base else None,
        options,
    )


def check_study(study: Study) -> None:
    """Raises InputError for a study that cannot be run, before anything is."""
    if not study.traces:
        raise InputError("no trace was given: hicache compare TRACE... --variant ...")
    if len(set(study.traces)) < len(study.traces):
        raise InputError("a trace is given twice; for other options of it take another variant")
    if "-" in study.traces:
        raise InputError("a trace is read once for each variant, and standard input cannot be")
    if len(study.variants) < 2:
        raise InputError(
            f"{len(study.variants)} variant: a comparison takes two or more, as in --policy cost "
            "--policy always, or --variant NAME:KEY=VALUE"
        )
    names = [each.name for each in study.variants]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"two variants are called {twice}: name them, as --variant NAME:KEY=VALUE")
    for variant in study.variants:
        for trace in study.traces:
            scenario = study.scenario_of(variant, trace)
            try:
                check_own(variant.own, scenario.mode)
            except InputError as error:
                raise InputError(f"variant {variant.name}: {error}") from None
            _check_pairs(study, trace, scenario, variant)


def _check_pairs(study: Study, trace: str, scenario: Scenario, variant: Variant) -> None:
    """The same requests, and times that can be laid side by side."""
    first = study.scenario_of(study.variants[0], trace)
    if scenario.mode != first.mode:
        raise InputError(
            f"variant {variant.name} is {scenario.mode} and {study.variants[0].name} {first.mode}: "
            "their requests cannot be compared"
        )


def study_text(study: Study) -> str:
    """The study as TOML that `study_of_file` reads back, from any folder."""
    lines = [f"traces = [{', '.join(toml_value(os.path.abspath(each)) for each in study.traces)}]"]
    if study.scenario:
        lines.append(f"scenario = {toml_value(os.path.abspath(study.scenario))}")
    lines += ["", "[common]", *_lines(study.common)]
    for each in study.variants:
        lines += ["", f"[variant.{toml_value(each.name)}]"]
        if each.scenario:
            lines.append(f"scenario = {toml_value(os.path.abspath(each.scenario))}")
        lines += _lines({**each.options, **each.own})
    return "\n".join(lines) + "\n"


def _lines(options: Mapping[str, object]) -> list[str]:
    written: list[str] = []
    for key, value in options.items():
        path = key in _PATHS or (key in _NAMED_OR_PATH and os.path.exists(str(value)))
        shown = os.path.abspath(str(value)) if path and value else value
        if key in _AFTER_AT and str(value).startswith("@"):
            shown = f"@{os.path.abspath(str(value)[1:])}"
        written.append(f"{key} = {toml_value(shown)}")
    return written


def _checked(variant: Variant) -> Variant:
    if not _NAME.fullmatch(variant.name):
        raise InputError(
            f"a variant's name is {variant.name!r}: it must be of letters, digits and . + @ _ -, "
            "for it names files, too"
        )
    if "trace.path" in variant.options:
        raise InputError("trace.path: all variants replay the same traces")
    return variant


def _parts(
    table: Mapping[str, Any], folder: str, where: str
) -> tuple[dict[str, object], dict[str, str], str | None]:
    """Options, classes of the user's own, and the scenario's file, of one table of the file."""
    options: dict[str, object] = {}
    own: dict[str, str] = {}
    scenario: str | None = None
    types = value_types()
    for key, value in _flat(table):
        if key == "scenario" and isinstance(value, str):
            scenario = _located(value, folder)
        elif key in KEYS and is_own(value):
            module, _, name = str(value).rpartition(":")
            own[key] = f"{_located(module, folder)}:{name}" if module.endswith(".py") else value
        elif key not in types:
            raise InputError(f"{where}: unknown key {key}{nearest(key, types)}")
        else:
            placed = key in _PATHS or (
                key in _NAMED_OR_PATH
                and (is_path(str(value)) or os.path.exists(os.path.join(folder, str(value))))
            )
            options[key] = _located(str(value), folder) if placed and value else value
            if key in _AFTER_AT and str(value).startswith("@"):
                options[key] = f"@{_located(str(value)[1:], folder)}"
    return options, own, scenario


def _flat(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _located(path: str, folder: str) -> str:
    return os.path.abspath(os.path.join(folder, os.path.expanduser(path)))
