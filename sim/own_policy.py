"""A policy of the user's own, `module:Class`, checked and put into an engine that is already made.

    restore.policy = module:Class     made with (page_size_tokens, belief); asked with a `Match`,
                                      answers with a `Choice`            hicache.restore_policy
    cache.eviction = module:Class     made without arguments; asked with a `Node`, answers with its
                                      key, and the smallest goes first   hicache.eviction

Whatever it gets wrong is one InputError that names it and what it was asked: a class that cannot be
made, an answer of another shape, a goal that nobody holds, an exception of its own. Its module is
looked for as Python does from the working folder; `mine.py:Class` names a file. What goes to
another process is an `OwnClass`, with the digest of its file. Refuses to guard against a policy
that means harm: it is Python, and runs as such.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from math import isnan
from typing import Any, NamedTuple

from hicache.engine import Engine
from hicache.errors import InputError
from hicache.eviction import Key
from hicache.node import Node
from hicache.restore_policy import Choice
from hicache.tree import Match
from report.outcome import Outcome
from scenario.names import nearest

RESTORE, EVICTION = "restore.policy", "cache.eviction"
KEYS = (RESTORE, EVICTION)
# What stands in a scenario where a class of the user's takes the place of it: the built-in one that
# leaves the engine as plain as it can be.
STAND_INS = {RESTORE: "cost", EVICTION: "lru"}


class OwnClass(NamedTuple):
    """A class that another process is to use: for which of `KEYS`, its name as it was given, the
    folder that its module is looked for from, and the SHA-256 of its file.
    """

    key: str
    name: str
    folder: str
    sha256: str


def is_own(value: object) -> bool:
    """Whether a value of one of `KEYS` names a class and not a built-in policy."""
    return isinstance(value, str) and ":" in value


def without_own(options: Mapping[str, object]) -> tuple[dict[str, object], dict[str, str]]:
    """`options` as a scenario takes them, and the classes that stood there, by key."""
    own = {key: str(options[key]) for key in KEYS if is_own(options.get(key))}
    return {**options, **{key: STAND_INS[key] for key in own}}, own


def owned(own: Mapping[str, str], mode: str) -> tuple[OwnClass, ...]:
    """The classes of `own` (key: class), checked as `check_own` does, for other processes."""
    check_own(own, mode)
    here = os.getcwd()
    return tuple(OwnClass(key, name, here, _sha256(name, here)) for key, name in own.items())


def load_class(name: str, key: str, folder: str = "") -> type:
    """The class that `name`, "module:Class" or "file.py:Class", stands for, seen from `folder`
    ("": the working folder).

    Raises InputError, beginning with `key`, where there is none.
    """
    folder = folder or os.getcwd()
    module_name, _, class_name = name.rpartition(":")
    module_name, class_name = module_name.strip(), class_name.strip()
    where = f'{key} is "{name}"'
    if not module_name or not class_name.isidentifier():
        raise InputError(f"{where}: it must be module:Class, as my_policies:LongOnly")
    try:
        module = _module(module_name, folder)
    except ModuleNotFoundError as error:
        if error.name and not module_name.startswith(error.name):
            raise InputError(f"{where}: {module_name} imports {error.name}: not found") from None
        raise InputError(
            f"{where}: there is no module {module_name} in {folder} or on Python's path"
        ) from None
    except Exception as error:
        raise InputError(f"{where}: {module_name} cannot be imported: {_told(error)}") from None
    found = getattr(module, class_name, None)
    if found is None:
        classes = [each for each, kind in vars(module).items() if inspect.isclass(kind)]
        raise InputError(
            f"{where}: {module_name} has no {class_name}{nearest(class_name, classes)}"
        )
    if not inspect.isclass(found):
        raise InputError(f"{where}: {class_name} is no class but a {type(found).__name__}")
    if not callable(getattr(found, "__call__", None)) or "__call__" not in dir(found):  # noqa: B004
        asked = "Match" if key == RESTORE else "Node"
        raise InputError(f"{where}: {class_name} has no __call__ that takes a {asked}")
    return found


def check_own(own: Mapping[str, str], mode: str) -> None:
    """Load every class of `own` and look at what it takes, before anything runs in `mode`. Raises
    InputError.
    """
    if mode == "untimed" and RESTORE in own:
        raise InputError(
            f'{RESTORE} is "{own[RESTORE]}": mode is untimed, and a run in which nothing takes '
            "time asks no restore policy"
        )
    for key, name in own.items():
        found = load_class(name, key)
        made_with = ("page_size_tokens", "belief") if key == RESTORE else ()
        _check_takes(found, found, made_with, f'{key} is "{name}": {found.__name__} is made with')
        takes = ("hits",) if key == RESTORE else ("node",)
        _check_takes(
            found, getattr(found, "__call__"), ("self", *takes),  # noqa: B004, B009
            f'{key} is "{name}": {found.__name__}.__call__ is asked with',
        )  # fmt: skip


def install_owned(engine: Engine, own: Sequence[OwnClass]) -> None:
    """As `install`, in whatever process; raises InputError where the file is another one there."""
    for each in own:
        if _sha256(each.name, each.folder) != each.sha256:
            raise InputError(
                f'{each.key} is "{each.name}": its file is another than when this began: it must '
                "not change meanwhile, and must be the same on every node"
            )
        install(engine, {each.key: each.name}, each.folder)


def install(engine: Engine, own: Mapping[str, str], folder: str = "") -> None:
    """Let `engine`, which has served nothing yet, follow the policies of `own` (key: class), whose
    modules are looked for from `folder`.

    Every engine gets an instance of its own, and all its tiers share it.
    """
    for key, name in own.items():
        found = load_class(name, key, folder)
        arguments: tuple[Any, ...] = ()
        if key == RESTORE:
            arguments = (engine.options.page_size_tokens, engine.belief)
        try:
            made = found(*arguments)
        except Exception as error:
            raise InputError(f'{key} is "{name}": it cannot be made: {_told(error)}') from None
        if key == RESTORE:
            engine.policy = engine.scheduler.admission.policy = _checked_choice(made, name)
        else:
            strategy = _checked_key(made, name)
            # Nobody promises that its keys only grow: every access offers a node again.
            engine.tree._falling = True
            for tier in engine.tree.tiers:
                tier.rank_by(strategy)


def _checked_choice(policy: Callable[[Match], Any], name: str) -> Callable[[Match], Choice]:
    def choose(hits: Match) -> Choice:
        asked = f"of hits (device {hits.device}, host {hits.host}, storage {hits.storage})"
        try:
            said = policy(hits)
        except Exception as error:
            raise InputError(f"{RESTORE} {name}: asked {asked}: {_told(error)}") from None
        deepest = max(hits.host, hits.storage)
        if not isinstance(said, Choice):
            raise InputError(
                f"{RESTORE} {name}: asked {asked} it said {said!r}: it must be a Choice(goal, "
                "reason) of hicache.restore_policy"
            )
        goal, reason = said
        if type(goal) is not int or not hits.device <= goal <= deepest:
            raise InputError(
                f"{RESTORE} {name}: asked {asked} it said goal {goal!r}: it must be a whole number "
                f"of pages from {hits.device} (restore nothing) to {deepest}"
            )
        if not isinstance(reason, str) or not reason:
            raise InputError(f"{RESTORE} {name}: asked {asked} it gave the reason {reason!r}: "
                             "it must be a word, which goes into the result")  # fmt: skip
        return said

    return choose


def _checked_key(strategy: Callable[[Node], Any], name: str) -> Callable[[Node], Key]:
    def key(node: Node) -> Key:
        try:
            said = strategy(node)
        except Exception as error:
            raise InputError(f"{EVICTION} {name}: asked of {node!r}: {_told(error)}") from None
        for each in said if type(said) is tuple else (said,):
            if not isinstance(each, (int, float)) or isnan(each):
                raise InputError(
                    f"{EVICTION} {name}: asked of {node!r} it said {said!r}: a key must be a "
                    "number or a tuple of numbers; the smallest goes first"
                )
        return said

    return key


def note(outcome: Outcome, own: Mapping[str, str]) -> None:
    """Say in what a run left which classes it ran with."""
    if not own:
        return
    named = ", ".join(f"{key} = {name}" for key, name in own.items())
    warnings: list[str] = outcome.summary["warnings"]  # pyright: ignore[reportAssignmentType]
    outcome.summary["warnings"] = [
        f"own_policy: {named}: scenario.toml holds what stands in for it; hicache compare, sweep "
        "and plan take such a class, hicache replay does not",
        *warnings,
    ]
    outcome.scenario_text = f"{head_lines(own)}\n{outcome.scenario_text}"


def head_lines(own: Mapping[str, str]) -> str:
    """What stands above a scenario that holds stand-ins: a line for each class."""
    return "".join(f"# {key} was {name}, a class of the user's\n" for key, name in own.items())


def _module(name: str, folder: str) -> Any:
    if name.endswith(".py"):
        return _module_of_file(os.path.join(folder, os.path.expanduser(name)), name)
    # An installed command does not look into the working folder; `python -m` does.
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(folder)


def _module_of_file(path: str, name: str) -> Any:
    path = os.path.abspath(path)
    if not os.path.isfile(path):
        raise ModuleNotFoundError(name, name=name)
    with open(path, "rb") as opened:
        source = opened.read()
    # Another content is another module: a notebook goes on after an edit.
    known = f"_hicache_own_{hashlib.sha256(source).hexdigest()}_{path}"
    if known not in sys.modules:
        spec = importlib.util.spec_from_file_location(known, path)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[known] = module
        try:
            # Of these very bytes, not of a compiled form that looks as old.
            exec(compile(source, path, "exec"), vars(module))
        except BaseException:
            del sys.modules[known]
            raise
    return sys.modules[known]


def _sha256(name: str, folder: str) -> str:
    """Of the file that class `name`, which can be loaded, is in; of nothing, if it is in none."""
    module = name.rpartition(":")[0].strip()
    return _digest(getattr(_module(module, folder), "__file__", None) or os.devnull)


def _digest(path: str) -> str:
    with open(path, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _check_takes(owner: type, callee: Any, names: tuple[str, ...], says: str) -> None:
    try:
        signature = inspect.signature(callee)
    except (TypeError, ValueError):
        return  # of a compiled class: its first call will tell
    try:
        signature.bind(*names)
    except TypeError:
        wanted = ", ".join(name for name in names if name != "self")
        raise InputError(
            f"{says} ({wanted}), and takes {signature} ({inspect.getsourcefile(owner) or '?'})"
        ) from None


def _told(error: Exception) -> str:
    """An exception of the user's code in a line, with the place where it came up."""
    last = traceback.extract_tb(error.__traceback__)[-1:]
    place = f" ({last[0].filename}:{last[0].lineno})" if last else ""
    return f"{type(error).__name__}: {error}{place}"
