"""Prefers the compiled engine to these sources, where there is one made of exactly them.

`make compiled` (scripts/compile_engine.py) puts it beside the packages, never into them:

    build/compiled/cpython-311-x86_64-linux-gnu/
        stamp          what it was made of: a hash of each source, and the modules in it
        engine-*.so    all those modules in one library, named after the stamp

Compiled modules know the layout of each other's objects, so it is all of them or none: they are
used only if every hash in the stamp is that of the file there now, and if nothing of them has been
imported from its source. One edited character, and the sources run again. What cannot be loaded is
said in one line and done without. An installed package has no such folder, and nothing happens.

`HICACHE_COMPILED`: 0 switches it off; a path is the folder to look in instead.

This module decides which of two forms of the same modules is imported, and nothing else: results
are the same bytes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    ExtensionFileLoader,
    ModuleSpec,
    PathFinder,
)
from importlib.util import source_hash, spec_from_file_location
from types import ModuleType

SWITCH = "HICACHE_COMPILED"
FIRST_LINE = "hicache-lab compiled engine 1"
STAMP = "stamp"
# The module that holds the code of all others; mypyc adds the end of its name.
GROUP = "hicache_engine"
LIBRARY = f"{GROUP}__mypyc"

# The platform that extension modules are for, from ".cpython-311-x86_64-linux-gnu.so".
_SUFFIX = EXTENSION_SUFFIXES[0]
_TAG = _SUFFIX.split(".")[1]
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def folder_of(root: str) -> str:
    """Where the compiled form of the packages in folder `root` is kept for this Python."""
    return os.path.join(root, "build", "compiled", _TAG)


def library_of(stamp: str) -> str:
    """The name of the library's file. Another stamp is another file, so that a process that runs
    while the engine is made anew does not mix the two.
    """
    return f"engine-{source_hash(stamp.encode()).hex()}{_SUFFIX}"


def hash_of(root: str, source: str) -> str:
    """The hash of a source, given as a path below `root`: what Python itself uses for .pyc files.

    Raises OSError where there is no such file.
    """
    with open(os.path.join(root, source), "rb") as file:
        return source_hash(file.read()).hex()


def stamp_text(root: str, sources: Sequence[str], modules: Sequence[str]) -> str:
    """The stamp of `modules` that were made of `sources`, as those are now."""
    lines = [FIRST_LINE, " ".join(modules)]
    lines += [f"{hash_of(root, source)} {source}" for source in sources]
    return "\n".join(lines) + "\n"


def look_in(folder: str, root: str) -> tuple[str, list[str]] | None:
    """The library in `folder` and its modules, if it was made of the very sources in `root`."""
    try:
        with open(os.path.join(folder, STAMP), encoding="utf-8") as file:
            stamp = file.read()
        first, modules, *sources = stamp.splitlines()
        if first != FIRST_LINE or not sources:
            return None
        for line in sources:
            known, source = line.split(" ", 1)
            if hash_of(root, source) != known:
                return None
    except (OSError, ValueError):  # no folder, a source that is gone, no stamp of ours
        return None
    return os.path.join(folder, library_of(stamp)), modules.split(" ")


class CompiledFinder:
    """Finds each of `modules` in `library`, where it has an entry of its own."""

    def __init__(self, modules: Sequence[str], library: str) -> None:
        self._modules = frozenset(modules)
        self._library = library

    def find_spec(
        self, name: str, path: object = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Where `name` is; None for what is not ours."""
        if name not in self._modules:
            return None
        loader = ExtensionFileLoader(name, self._library)
        return spec_from_file_location(name, self._library, loader=loader)


def in_use() -> bool:
    """Whether the compiled engine runs in this process."""
    return any(type(finder) is CompiledFinder for finder in sys.meta_path)


def prefer() -> None:
    """Use the compiled engine from now on if there is one of these sources. Called once, before
    anything else of `hicache` is imported.
    """
    wish = os.environ.get(SWITCH, "1")
    if wish == "0" or in_use():
        return
    folder = folder_of(_ROOT) if wish in ("", "1") else wish
    found = look_in(folder, _ROOT)
    if found is None or not _all_from_here(found[1]):
        return
    library, modules = found
    finder = CompiledFinder([*modules, LIBRARY], library)
    sys.meta_path.insert(0, finder)  # type: ignore[arg-type]
    try:
        import_module(LIBRARY)
    except Exception as error:  # whatever a library can do wrong, the sources are there
        sys.meta_path.remove(finder)  # type: ignore[arg-type]
        said = " ".join(str(error).split())
        print(f"hicache: the compiled engine is not used: {said}", file=sys.stderr)


def _all_from_here(modules: Sequence[str]) -> bool:
    """Whether the packages of all modules are those in this folder, and none is loaded yet."""
    if any(name in sys.modules for name in modules):
        return False
    for package in {name.split(".")[0] for name in modules} - {"hicache"}:
        spec = PathFinder.find_spec(package)
        if spec is None or spec.origin != os.path.join(_ROOT, package, "__init__.py"):
            return False
    return True
