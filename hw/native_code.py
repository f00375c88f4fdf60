"""Libraries that `scripts/compile_loop.py` (of `make compiled`) makes of single files of C.

They lie in build/native under a name that holds a hash of their source: an edited source is another
library. One is never in the way: where there is none, it does not load, or HICACHE_COMPILED is 0,
Python does the same. Refuses to compile anything.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from importlib.util import source_hash
from pathlib import Path
from typing import TypeVar

from hicache.compiled import SWITCH

FOLDER = Path(__file__).resolve().parents[1] / "build" / "native"
L = TypeVar("L")


def path_of(source: Path, folder: Path = FOLDER, *made_for: str) -> Path:
    """Where the library of this very source is, or would be. made_for: what else it depends on."""
    name = [source.stem, source_hash(source.read_bytes()).hex(), platform.machine(), *made_for]
    return folder / f"{'-'.join(name)}.so"


def loaded(name: str, find: Callable[[], Path], load: Callable[[Path], L]) -> L | None:
    """The library, if it was made and may be used. One that does not load is said, by its name."""
    if os.environ.get(SWITCH) == "0":
        return None
    try:
        path = find()
        return load(path) if path.exists() else None
    except OSError as error:
        print(f"{name} does not load ({error})", file=sys.stderr)
        return None
