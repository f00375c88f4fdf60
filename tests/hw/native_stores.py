"""File stores over the loop and the plan in C, for tests: made once, opened, counted, and run in
another process.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

import pytest
from file_store_contract import ALIGNED
from file_store_helpers import ROOT, fill
from native_calls import compiled_loop, compiled_plan, replace_calls

from hw.storage import plan_native
from hw.storage.file_store import FileStore
from hw.storage.host import HostBuffer

PAGE = ALIGNED


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Path:
    """Where the libraries are made anew."""
    return tmp_path_factory.getbasetemp() / "native"


@pytest.fixture
def compiled(made) -> ctypes.CDLL:
    """The loop."""
    return compiled_loop(made)


@pytest.fixture
def use_it(made, monkeypatch) -> None:
    """File stores that are opened from now on take loop and plan."""
    monkeypatch.setattr("hw.storage.file_store.library", lambda: compiled_loop(made))
    monkeypatch.setattr(plan_native, "library", lambda: compiled_plan(made))


@pytest.fixture
def instead(monkeypatch):
    """`instead(act)`: `act` takes the place of every call."""
    return lambda act: replace_calls(monkeypatch, dict.fromkeys(("reading", "writing"), act))


def tasks() -> int:
    """Threads of this process, those of C included."""
    return len(os.listdir("/proc/self/task"))


def settled(most: int) -> int:
    """Threads, once there are `most` or a second has gone by: one that was joined may be listed a
    moment longer.
    """
    for _ in range(100):
        if tasks() <= most:
            break
        time.sleep(0.01)
    return tasks()


def open_store(folder: Path, pages: int, workers: int = 4) -> tuple[FileStore, HostBuffer]:
    host = HostBuffer(2 * pages, PAGE)
    fill(host)
    return FileStore(folder, pages, PAGE, host, workers=workers), host


def in_another_process(folder: Path, made: Path, act: str) -> subprocess.CompletedProcess[str]:
    """Run `act` where there are a `store`, `read` and `tasks`."""
    prelude = f"""
        import ctypes, os, sys, threading, time, warnings
        warnings.simplefilter("ignore")  # of Python's, who forks with threads
        sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(ROOT)!r}]
        from pathlib import Path
        from file_store_helpers import ROOT, content, fill, runs
        from hw.storage import file_store, native
        from hw.storage.host import HostBuffer
        library = native.open_library(native.library_path(Path({str(made)!r})))
        file_store.library = lambda: library
        host = HostBuffer(80, {PAGE})
        fill(host)
        store = file_store.FileStore(Path({str(folder)!r}), 40, {PAGE}, host, workers=4)
        store.write(((0, 40),), ((0, 40),))
        pages = content(host)[:40]
        calls = ctypes.CDLL({str(made / "slow.so")!r})
        slow = ctypes.cast(calls.slow, ctypes.c_void_p).value
        native._Direction.calls["reading"] = slow  # so that every thread has something to read

        def read():
            host.view(40, 40)[:] = bytes(40 * {PAGE})
            store.read(runs(range(39, -1, -1)), ((40, 40),))
            assert content(host)[40:] == pages[::-1]

        def tasks():
            time.sleep(0.05)
            return len(os.listdir("/proc/self/task"))
    """
    compiled_loop(made)
    source = made / "slow.c"
    source.write_text("""
        #include <unistd.h>
        ssize_t slow(int fd, void *memory, size_t size, off_t position) {
            usleep(2000);
            return pread(fd, memory, size, position);
        }
    """)
    command = ["cc", "-shared", "-fPIC", str(source), "-o", str(made / "slow.so")]
    subprocess.run(command, check=True)
    return subprocess.run(
        [sys.executable, "-c", dedent(prelude) + dedent(act)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
