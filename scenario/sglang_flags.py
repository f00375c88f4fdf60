"""The arguments of SGLang's server, told apart: which there are, in which version, with how many
values. The names stand in `sglang_flags.txt`.

Decides nothing about what an argument means (`scenario.sglang_args`). Names must be written out:
the server also takes any beginning that fits one name only, which a mistyped one may do by chance.
"""

from __future__ import annotations

import os
import shlex
from functools import cache
from typing import NamedTuple

from hicache.errors import InputError
from scenario.names import nearest
from scenario.sglang_config import read_file
from scenario.sglang_rules import SGLANG_VERSIONS

# Other spellings of the same argument, with short forms that everybody writes.
_SAME = {
    "--model": "--model-path",
    "--tp": "--tp-size",
    "--tensor-parallel-size": "--tp-size",
    "--dp": "--dp-size",
    "--data-parallel-size": "--dp-size",
    "--pp": "--pp-size",
    "--pipeline-parallel-size": "--pp-size",
    "--enable-hicache": "--enable-hierarchical-cache",
    "--attention-data-parallel-size": "--attn-dp-size",
    "--attention-context-parallel-size": "--attn-cp-size",
    "--decode-context-parallel-size": "--dcp-size",
}
_SHORT = ("--tp", "--dp", "--pp")
ORIGIN = "--sglang-args"


class Flag(NamedTuple):
    """`values`: "0", "1", "?" (none or one) or "+" (one or more). `versions`: those that have
    it.
    """

    values: str
    versions: tuple[str, ...]


@cache
def known_flags() -> dict[str, Flag]:
    """Every argument of every version, by name."""
    file = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sglang_flags.txt")
    flags: dict[str, Flag] = {}
    with open(file, encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("--"):
                name, values, marks = line.split()
                versions = zip(SGLANG_VERSIONS, marks, strict=True)
                flags[name] = Flag(values, tuple(each for each, mark in versions if mark == "x"))
    for name in _SHORT:
        flags[name] = Flag("1", SGLANG_VERSIONS)
    return flags


def parse_arguments(text: str, version: str) -> dict[str, list[str]]:
    """The arguments in `text` with their values, under one name each; the last of two wins.

    A whole command may stand there (`python -m sglang.launch_server ...`). Those of a `--config`
    file come first. Raises InputError for what the server would refuse.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InputError(f"{ORIGIN}: {error} in {text!r}") from None
    if words and not words[0].startswith("-"):
        words = _without_command(words)
    given = _told_apart(words, version)
    if "--config" in given:
        config = read_file(given["--config"][0], "--config")
        return _told_apart(_as_words(config), version) | given
    return given


def _without_command(words: list[str]) -> list[str]:
    """The words behind `python -m sglang.launch_server` or `sglang serve`."""
    for place, word in enumerate(words):
        if word.startswith("--"):
            break
        if word == "sglang.launch_server" or word.endswith("launch_server.py") or word == "serve":
            return words[place + 1 :]
    raise InputError(
        f"{ORIGIN}: {words[0]!r} is no argument: write those of the server, as in "
        "'--enable-hierarchical-cache --hicache-ratio 2'"
    )


def _as_words(config: dict[str, object]) -> list[str]:
    words: list[str] = []
    for key, value in config.items():
        name = f"--{key.replace('_', '-')}"
        if value is True:
            words.append(name)
        elif isinstance(value, list):
            words += [name, *map(str, value)]
        elif value is not False and value is not None:
            words += [name, str(value)]
    return words


def _told_apart(words: list[str], version: str) -> dict[str, list[str]]:
    flags = known_flags()
    given: dict[str, list[str]] = {}
    place = 0
    while place < len(words):
        name, equals, value = words[place].partition("=")
        place += 1
        if not name.startswith("--"):
            raise InputError(f"{ORIGIN}: {name!r} stands behind no argument that takes it")
        flag = flags.get(name)
        if flag is None:
            raise InputError(f"{ORIGIN}: unknown argument {name}{nearest(name, flags)}")
        if version not in flag.versions:
            raise InputError(
                f"{ORIGIN}: SGLang {version} has no {name}; {' and '.join(flag.versions)} "
                f"{'has' if len(flag.versions) == 1 else 'have'} it: say --preset "
                f"sglang-{flag.versions[-1]}"
            )
        values = [value] if equals else []
        most = {"0": 0, "1": 1, "?": 1, "+": len(words)}[flag.values]
        while place < len(words) and len(values) < most and not words[place].startswith("--"):
            values.append(words[place])
            place += 1
        if len(values) > most:
            raise InputError(f"{ORIGIN}: {name} takes no value, and {value!r} was given")
        if not values and flag.values in "1+":
            raise InputError(f"{ORIGIN}: {name} needs a value")
        given[_SAME.get(name, name)] = values
    return given
