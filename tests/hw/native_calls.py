"""For tests of what is compiled from C: make it, and put something in the place of the system calls
of the loop of L3 files.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from file_store_helpers import ROOT, environment

from hw.storage import native, plan_native
from hw.transfers import front_native

CALL = ctypes.CFUNCTYPE(
    ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64,
    use_errno=True,
)  # fmt: skip

Act = Callable[..., int]
"""`act(real, fd, address, size, position)`: a byte count, or -errno. `real` is what it is for."""


def compile_to(folder: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run the script."""
    return subprocess.run(
        [sys.executable, ROOT / "scripts/compile_loop.py", "--folder", folder],
        env=environment() | changes,
        capture_output=True,
        text=True,
        check=False,
    )


@cache
def compiled_loop(folder: Path) -> ctypes.CDLL:
    """The library, made in `folder`; the test is skipped where there is no compiler."""
    done = compile_to(folder)
    if "there is no C compiler" in done.stdout:
        pytest.skip("there is no C compiler")
    assert done.returncode == 0, done.stdout + done.stderr
    return native.open_library(native.library_path(folder))


@cache
def compiled_plan(folder: Path) -> ctypes.PyDLL:
    """Likewise the plan of L3 files."""
    compiled_loop(folder)
    return plan_native.open_library(plan_native.library_path(folder))


def loop_with(folder: Path, create: str) -> ctypes.CDLL:
    """The library, with `create` before each start of a thread: C, which may return why not.
    `asked` counts them.
    """
    compiled_loop(folder)
    source, made = folder / "with.c", folder / "with.so"
    source.write_text(f"""
        #define _GNU_SOURCE
        #include <errno.h>
        #include <pthread.h>
        #include <stdatomic.h>
        atomic_int asked;
        static int create(pthread_t *id, const pthread_attr_t *how, void *(*act)(void *),
                          void *op) {{
            asked++;
            {create}
            return pthread_create(id, how, act, op);
        }}
        #define pthread_create create
        #include "{native.SOURCE}"
    """)
    command = ["cc", "-O2", "-shared", "-fPIC", "-pthread", str(source), "-o", str(made)]
    subprocess.run(command, check=True)
    return native.open_library(made)


@cache
def compiled_front(folder: Path) -> front_native.Library:
    """Likewise the front of copies."""
    compiled_loop(folder)
    return front_native.open_library(front_native.library_path(folder))


@cache
def front_without_headers(folder: Path) -> front_native.Library:
    """Another, as it is made where Python's headers are not installed."""
    return front_native.open_library(_without_headers(folder, front_native.SOURCE))


@cache
def plan_without_headers(folder: Path) -> ctypes.PyDLL:
    """Likewise the plan."""
    return plan_native.open_library(_without_headers(folder, plan_native.SOURCE))


def _without_headers(folder: Path, source: Path) -> Path:
    compiled_loop(folder)
    made = folder / f"{source.stem}-stable.so"
    command = ["cc", "-std=gnu11", "-O2", "-shared", "-fPIC", "-DSTABLE_INTERFACE"]
    subprocess.run([*command, str(source), "-o", str(made)], check=True)
    return made


def replace_calls(patch: pytest.MonkeyPatch, acts: dict[str, Act]) -> None:
    """`acts` by "reading" and "writing" take the place of `pread` and `pwrite`."""
    libc = ctypes.CDLL(None, use_errno=True)
    calls, kept = {}, []
    for verb, act in acts.items():
        real = CALL(({"reading": "pread", "writing": "pwrite"}[verb], libc))

        def call(*arguments: int, act=act, real=real) -> int:
            result = act(real, *arguments)
            if result < 0:
                ctypes.set_errno(-result)
            return max(result, -1)

        kept.append(CALL(call))
        calls[verb] = ctypes.cast(kept[-1], ctypes.c_void_p).value or 0
    patch.setattr(native._Direction, "calls", calls)
    # As long as the calls may be made: a thread may still be in one when they are undone.
    _alive.extend(kept)


_alive: list[object] = []
