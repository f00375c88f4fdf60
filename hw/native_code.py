"""Libraries that `scripts/compile_loop.py` (of `make compiled`) makes of files of C: one of
each, with the headers of ours that it includes.

They lie in build/native under a name that holds a hash of their sources: an edited one is another
library. One is never in the way: where there is none, it does not load, or HICACHE_COMPILED is 0,
Python does the same. Refuses to compile anything.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import sysconfig
from collections.abc import Callable
from importlib.util import source_hash
from pathlib import Path
from typing import TypeVar

from hicache.compiled import SWITCH

FOLDER = Path(__file__).resolve().parents[1] / "build" / "native"
L = TypeVar("L")
_INCLUDED = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def sources_of(source: Path) -> list[Path]:
    """The source, and all headers of ours that it is made of, each once. Raises OSError."""
    found = [source.resolve()]
    for each in found:
        for name in _INCLUDED.findall(each.read_text(encoding="utf-8")):
            header = (each.parent / name).resolve()
            if header not in found:
                found.append(header)
    return found


def path_of(source: Path, folder: Path = FOLDER, *made_for: str) -> Path:
    """Where the library of these very sources is, or would be. made_for: what else it depends on.

    Raises OSError where a header is missing.
    """
    content = b"\0".join(each.read_bytes() for each in sources_of(source))
    name = [source.stem, source_hash(content).hex(), platform.machine(), *made_for]
    return folder / f"{'-'.join(name)}.so"


def python_abi() -> str:
    """What a library that reads Python's objects by Python's headers is made for."""
    return str(sysconfig.get_config_var("SOABI"))


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
