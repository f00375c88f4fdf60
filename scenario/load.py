"""Reads a scenario: preset, file, overrides, each a flat set of dotted keys; the last one wins.

Nothing is guessed. An unknown key, a value of the wrong type, a number out of range: each is one
InputError that names where it was written (file or command line), the dotted key, the value and
what is allowed. Paths are meant relative to the file they stand in, or to the working folder when
they come as overrides.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

import msgspec

from hicache.errors import InputError
from scenario.names import nearest
from scenario.presets import DEFAULT_PRESET, preset_options
from scenario.records import TABLES, Scenario, value_types
from scenario.sizes import Size, parse_size

COMMAND_LINE = "command line"
_TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def load_scenario(
    path: str | os.PathLike[str] | None, overrides: Mapping[str, object] | None = None
) -> Scenario:
    """The scenario of the TOML file at `path` (None: no file), changed by `overrides`.

    Overrides are dotted keys with values, typed as in a file (texts: see `parse_assignments`).
    Raises InputError for a file that cannot be read or is no TOML, and for everything that the
    scenario does not allow.
    """
    given: dict[str, object] = {}
    origins: dict[str, str] = {}
    types = value_types()
    layers: list[tuple[str, str, Iterator[tuple[str, object]]]] = []
    if path is not None:
        file = os.fspath(path)
        layers.append((file, os.path.dirname(os.path.abspath(file)), _flat(read_toml(file), file)))
    layers.append((COMMAND_LINE, os.getcwd(), iter((overrides or {}).items())))
    for origin, folder, options in layers:
        for key, raw in options:
            if key not in types:
                raise InputError(f"{origin}: {_unknown(key, types)}")
            try:
                value = _decoded(key, raw, types[key])
                given[key] = _located(key, value, folder) if key in _LOCATE else value
            except InputError as error:
                raise InputError(f"{origin}: {error}") from None
            origins[key] = origin
    try:
        preset = preset_options(str(given.get("preset", DEFAULT_PRESET)))
        return _built({**preset, **given})
    except InputError as error:
        # Records name the offending key first.
        origin = origins.get(str(error).split(" ", 1)[0])
        raise InputError(f"{origin}: {error}" if origin else str(error)) from None


def parse_assignments(texts: Sequence[str]) -> dict[str, object]:
    """Overrides from texts like `restore.policy=always`, as `--set` takes them.

    What stands behind the `=` is read as the key's type asks: texts, names and sizes need no
    quotes. Raises InputError for a text without `=` and for an unknown key.
    """
    types = value_types()
    overrides: dict[str, object] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        key, value = key.strip(), value.strip()
        if not equals or not key:
            raise InputError(f"{COMMAND_LINE}: {text!r} is no assignment; write KEY=VALUE")
        if key not in types:
            raise InputError(f"{COMMAND_LINE}: {_unknown(key, types)}")
        overrides[key] = _from_text(value, types[key])
    return overrides


def read_toml(file: str) -> dict[str, Any]:
    """The tables of a TOML file. Raises InputError naming the file and, for syntax, the line."""
    import tomllib

    try:
        with open(file, "rb") as opened:
            return tomllib.load(opened)
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: not a text in UTF-8 (byte {error.start})") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{file}: not valid TOML: {error}") from None


def _flat(tree: Mapping[str, Any], file: str) -> Iterator[tuple[str, object]]:
    for name, value in tree.items():
        if name in TABLES and not isinstance(value, dict):
            raise InputError(
                f"{file}: {name} is {_shown(value)}: {name} is a table, write [{name}]"
            )
        if name in TABLES:
            yield from ((f"{name}.{key}", inner) for key, inner in value.items())
        elif isinstance(value, dict):
            raise InputError(
                f"{file}: unknown table [{name}]{nearest(name, TABLES)}; "
                f"tables are {', '.join(TABLES)}"
            )
        else:
            yield name, value


def _unknown(key: str, types: Mapping[str, Any]) -> str:
    table, dot, _ = key.rpartition(".")
    if key in TABLES:
        return f"{key} is a table: name one of its keys, {_keys_of(key, types)}"
    if dot and table in TABLES:
        allowed = f"[{table}] has {_keys_of(table, types)}"
    else:
        top = ", ".join(each for each in types if "." not in each)
        allowed = f"outside the tables there are {top}; tables are {', '.join(TABLES)}"
    return f"unknown key {key}{nearest(key, types)}; {allowed}"


def _keys_of(table: str, types: Mapping[str, Any]) -> str:
    prefix = f"{table}."
    return ", ".join(key.removeprefix(prefix) for key in types if key.startswith(prefix))


def _decoded(key: str, value: object, kind: Any) -> object:
    if kind is Size:
        return parse_size(value, key)
    try:
        decoded = msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError:
        raise InputError(f"{key} is {_shown(value)}: it must be {_allowed(key, kind)}") from None
    if isinstance(decoded, float) and not math.isfinite(decoded):
        raise InputError(f"{key} is {decoded}: it must be a finite number")
    return decoded


def _allowed(key: str, kind: Any) -> str:
    if get_origin(kind) is Literal:
        *others, last = (f'"{each}"' for each in get_args(kind))
        return f"{', '.join(others)} or {last}"
    if key == "seed":
        return "a whole number, 0 or more"
    return _TYPE_NAMES[kind]


def _from_text(text: str, kind: Any) -> object:
    """`text` as a number or a truth value where one is wanted; the text itself otherwise."""
    if kind is bool:
        return {"true": True, "false": False}.get(text, text)
    try:
        return kind(text) if kind in (int, float) else _unquoted(text)
    except ValueError:
        return text


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _located(key: str, value: object, folder: str) -> str:
    return _LOCATE[key](str(value), folder)


def _trace_path(path: str, folder: str) -> str:
    return _absolute(path, folder) if path and path != "-" else path


def _after_at(text: str, folder: str) -> str:
    return f"@{_absolute(text[1:], folder)}" if text.startswith("@") else text


def _model_name(name: str, folder: str) -> str:
    from scenario.geometry import canonical_name

    return canonical_name(name, folder)


def _profile_name(name: str, folder: str) -> str:
    return _absolute(name, folder) if is_path(name) else name.strip().lower()


def is_path(name: str) -> bool:
    """Whether a name is meant as a path: it ends in .json or begins as paths do."""
    return name.lower().endswith(".json") or name.startswith(("/", "./", "../", "~"))


def _absolute(path: str, folder: str) -> str:
    return os.path.abspath(os.path.join(folder, os.path.expanduser(path)))


_LOCATE = {
    "trace.path": _trace_path,
    "trace.tokenizer": _trace_path,
    "hw.weights": _trace_path,
    "hw.l3_path": _trace_path,
    "hw.store_path": _trace_path,
    "hw.store_config": _after_at,
    "model.name": _model_name,
    "machine.profile": _profile_name,
    "machine.store": _profile_name,
}


def _built(options: Mapping[str, object]) -> Scenario:
    tables: dict[str, dict[str, object]] = {table: {} for table in TABLES}
    top: dict[str, object] = {}
    for key, value in options.items():
        table, _, name = key.rpartition(".")
        (tables[table] if table else top)[name] = value
    parts = {table: record(**tables[table]) for table, record in TABLES.items()}
    return Scenario(**top, **parts)  # pyright: ignore[reportArgumentType]
