"""Makes what is compiled from C: the loop of L3 files and their plan (hw/storage/loop.c, plan.c),
and the front of copies between L1 and L2 (hw/transfers/front.c), each into a library in
build/native.

    make compiled, or .venv/bin/python scripts/compile_loop.py

It takes a C compiler, and a second. A library of its very source is left alone. Exit code 1, and a
line that says why: there is none, and Python does the same.

What they are for stands in `hw.storage.native`, `hw.storage.plan_native` and `hw.transfers.front`.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from hw.storage import native, plan_native  # noqa: E402
from hw.transfers import front_native  # noqa: E402

FLAGS = ("-std=gnu11", "-O2", "-shared", "-fPIC", "-pthread", "-D_FILE_OFFSET_BITS=64", "-Wall")


class NotPossible(Exception):
    """No compiled loop here. The message says why."""


def main() -> int:
    """Make them, if need be; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--folder", type=Path, default=native.FOLDER)
    folder = parser.parse_args().folder
    code = 0
    for module, name, without in (
        (native, "loop for L3 files", "Small pages are read more slowly."),
        (plan_native, "plan for L3 files", "Reads of many small pages begin later."),
        (front_native, "front of copies", "Small copies take longer."),
    ):
        path = module.library_path(folder)
        try:
            said = "up to date" if path.exists() else "made"
            if said == "made":
                make(module.SOURCE, path, module.open_library)
        except NotPossible as reason:
            print(f"No compiled {name}: {reason}. {without}")
            code = 1
        else:
            print(f"compiled {name}: {said}")
    return code


def make(source: Path, path: Path, load: Callable[[Path], object]) -> None:
    """Compile to `path`; nothing is seen there before it loads. Raises NotPossible."""
    if not sys.platform.startswith("linux"):
        raise NotPossible("it is made on Linux only")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="making-", dir=path.parent) as folder:
        made = Path(folder) / path.name
        command = [*_compiler(), *FLAGS, _headers(), str(source), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NotPossible(f"the C compiler fails: {_last_line(done.stderr)}")
        try:
            load(made)
        except OSError as error:
            raise NotPossible(f"it does not load: {error}") from error
        made.rename(path)


def _headers() -> str:
    """This Python's, where they are installed; never another's that the compiler may find."""
    folder = Path(sysconfig.get_path("include"))
    return f"-I{folder}" if (folder / "Python.h").exists() else "-DSTABLE_INTERFACE"


def _compiler() -> list[str]:
    """The C compiler that this Python was built with, or cc."""
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    for each in (command, ["cc"], ["gcc"]):
        if shutil.which(each[0]):
            return each
    raise NotPossible("there is no C compiler")


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it says nothing"])[-1]


if __name__ == "__main__":
    sys.exit(main())
