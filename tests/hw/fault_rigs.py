"""What goes wrong in `fault_runs`: copies, a disk, its file, requests that are given up."""

from __future__ import annotations

import errno
import os
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from fault_runs import FaultyRun, Front, Rig, quick
from live_runs import FaultyLanes
from native_calls import replace_calls

from hicache.operations import Operation
from hw.device import Device
from hw.storage import pread
from hw.storage.slot_file import MARK


def failing(fail: float, slow: float = 0.0) -> Callable[[FaultyRun, Any], FaultyLanes]:
    """A port whose copies fail now and then, and leave rubbish where they were to arrive."""

    def port(run: FaultyRun, parts: Any) -> FaultyLanes:
        env, lanes = parts
        run.faulty = FaultyLanes(env, lanes, Random(5), fail=fail, slow=slow, spoil=run.spoil)
        return run.faulty

    return port


class CrookedDisk:
    """In place of the operating system: each third system call fails ("EIO") or does only a part
    of what it was asked for ("short"), in whole blocks. `install` puts it below Python's threads
    and below compiled ones.
    """

    def __init__(self, kind: str, block_bytes: int) -> None:
        self.calls: Counter[str] = Counter()
        self._kind = kind
        self._block = block_bytes

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """From now on, until `patch` is undone."""
        patch.setattr(pread, "os", self)
        replace_calls(
            patch,
            {"reading": partial(self._act, "preadv"), "writing": partial(self._act, "pwritev")},
        )

    def preadv(self, fd: int, buffers: list[memoryview], position: int) -> int:
        return os.preadv(fd, self._asked("preadv", buffers), position)

    def pwritev(self, fd: int, buffers: list[memoryview], position: int) -> int:
        return os.pwritev(fd, self._asked("pwritev", buffers), position)

    def _asked(self, name: str, buffers: list[memoryview]) -> list[memoryview]:
        size = self._size(name, len(buffers[0]))
        if size < 0:
            raise OSError(-size, os.strerror(-size))
        return [buffers[0][:size]]

    def _act(self, name: str, real, fd: int, address: int, size: int, position: int) -> int:
        size = self._size(name, size)
        return size if size < 0 else real(fd, address, size, position)

    def _size(self, name: str, size: int) -> int:
        """How much of `size` is done, or -errno."""
        self.calls[name] += 1
        if self.calls[name] % 3:
            return size
        if self._kind == "EIO":
            return -errno.EIO
        return min(size, max(self._block, size // 3 // self._block * self._block))


def after(queue: str, number: int, act: Callable[[], object]) -> Rig:
    """A rig: `act()` once, when `number` operations of a queue have begun."""

    class Counting(Front):
        begun = 0

        def run(self, operation, control, steps=()):
            self.begun += 1
            if self.begun == number + 1:
                act()
            return super().run(operation, control, steps)

    return lambda name, device: Counting(device) if name == queue else quick(name, device)


def overwrite(path: Path) -> None:
    """Zeros here and there behind the first block, all pages of 16 KiB and more: done before a page
    is read; the size and the mark at the end stay.
    """
    with path.open("r+b", buffering=0) as file:
        for place in range(4096, path.stat().st_size - len(MARK) - 512, 16 << 10):
            file.seek(place)
            file.write(bytes(512))


# What somebody else does to the file of L3.
DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 3),
    "removed": lambda path: path.unlink(),
    "overwritten": overwrite,
}
PHASES = ("queued", "restoring", "prefilling", "decoding", "written")


class GivingUp:
    """Gives up `most` requests of each phase. Each operation, before it begins, asks for one; so
    it happens while that operation is under way. "written": its pages are on their way down.

    `rig` is for a FaultyRun, which is then handed to `watch`.
    """

    def __init__(self, most: int = 2) -> None:
        self.given_up: Counter[str] = Counter()
        self._most = most
        self._run: FaultyRun | None = None

    def watch(self, run: FaultyRun) -> None:
        self._run = run

    def rig(self, name: str, device: Device) -> Device:
        asking = self

        class Asking(Front):
            def run(self, operation, control, steps=()):
                if asking._run is not None:
                    env = asking._run.run.env
                    env.call_soon_threadsafe(lambda: asking.give_up(operation))
                    time.sleep(0.002)
                return super().run(operation, control, steps)

        return Asking(quick(name, device))

    def give_up(self, operation: Operation) -> None:
        assert self._run is not None
        engine, recorder = self._run.engine, self._run.run.recorder
        direction = getattr(operation, "direction", "")
        for each in engine.scheduler.endings.live.values():
            if each.aborting:
                continue
            phase = each.phase
            if phase == "decoding" and direction in ("d2h", "h2s"):
                phase = "written"
            if self.given_up[phase] < self._most:
                self.given_up[phase] += 1
                recorder.abort(engine, each.request.number)
                return
