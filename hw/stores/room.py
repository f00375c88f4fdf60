"""How much a folder of page files may take; the least recently used of them leaves first.

    oldest | .... | newest                tracked, in bytes
                     ^ reserved: being written, never a victim

When a page does not fit, files leave until what is tracked is at most `watermark` of the limit with
the new page in it. What was there before a start counts, oldest first by modification time; files
of other owners do not. The rules are those of SGLang's file store; the book is ours. It removes
files and does nothing else to them.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from pathlib import Path

from hicache.errors import InputError
from hw.stores.names import Owner


class Room:
    """The book of one owner's files in one folder. Thread-safe.

    `limit_bytes`: 0 for none. `least_free_bytes`: what the file system keeps free, 0 for no such
    rule. With neither, everything is admitted and nothing is tracked.
    """

    def __init__(
        self,
        folder: Path,
        owner: Owner,
        limit_bytes: int = 0,
        watermark: float = 0.9,
        least_free_bytes: int = 0,
    ) -> None:
        if min(limit_bytes, least_free_bytes) < 0:
            raise InputError("SGLang file store: limits in bytes must not be negative")
        if not 0 < watermark <= 1:
            raise InputError(
                f"SGLang file store: the watermark is {watermark}: it must lie above 0, and at "
                "most at 1"
            )
        self._folder = folder
        self._owner = owner
        self._watermark = watermark
        self._least_free = least_free_bytes
        self._lock = threading.Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()  # by file name, oldest first
        self._reserved: set[str] = set()
        self.used_bytes = 0
        self.evicted = 0
        self.tracks = limit_bytes > 0 or least_free_bytes > 0
        self.limit_bytes = limit_bytes
        if not self.tracks:
            return
        if limit_bytes:
            system = os.statvfs(folder)
            most = max(0, system.f_blocks * system.f_frsize - least_free_bytes)
            self.limit_bytes = min(limit_bytes, most)
        self._count_what_is_there()
        if self.limit_bytes and self.used_bytes > self.limit_bytes:
            self._evict_to(self._target(0))
        self._free_enough(0)

    def reserve(self, file_name: str, size_bytes: int) -> bool:
        """Admit a file that is about to be written; False if it may not be. Follow with `keep` or
        `release`.
        """
        if not self.tracks:
            return True
        with self._lock:
            if self.limit_bytes:
                if size_bytes > self.limit_bytes:
                    return False
                if self.used_bytes + size_bytes > self.limit_bytes:
                    self._evict_to(self._target(size_bytes))
                    if self.used_bytes + size_bytes > self.limit_bytes:
                        return False
            if not self._free_enough(size_bytes):
                return False
            self.used_bytes += size_bytes - self._sizes.pop(file_name, 0)
            self._sizes[file_name] = size_bytes
            self._reserved.add(file_name)
            return True

    def keep(self, file_name: str) -> None:
        """A reserved file is written: it may be a victim from now on."""
        if self.tracks:
            with self._lock:
                self._reserved.discard(file_name)

    def release(self, file_name: str) -> None:
        """A reserved file was not written."""
        if self.tracks:
            with self._lock:
                self._reserved.discard(file_name)
                self.used_bytes -= self._sizes.pop(file_name, 0)

    def touch(self, file_name: str, size_bytes: int) -> None:
        """A file was used; one that somebody else put there is counted from now on."""
        if self.tracks and self._owner.owns(file_name):
            with self._lock:
                if file_name in self._sizes:
                    self._sizes.move_to_end(file_name)
                else:
                    self._sizes[file_name] = size_bytes
                    self.used_bytes += size_bytes

    def _target(self, size_bytes: int) -> int:
        return max(0, int(self.limit_bytes * self._watermark) - size_bytes)

    def _count_what_is_there(self) -> None:
        found: list[tuple[int, str, int]] = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if self._owner.owns(entry.name) and entry.is_file():
                    now = entry.stat()
                    found.append((now.st_mtime_ns, entry.name, now.st_size))
        for _, name, size_bytes in sorted(found):
            self._sizes[name] = size_bytes
            self.used_bytes += size_bytes

    def _evict_to(self, target_bytes: int) -> None:
        while self.used_bytes > target_bytes and self._evict_oldest() >= 0:
            pass

    def _free_enough(self, size_bytes: int) -> bool:
        """Evict until the file system keeps what it must; whether it does then."""
        if not self._least_free:
            return True
        free_bytes = _free_bytes(self._folder)
        while free_bytes - size_bytes < self._least_free:
            freed = self._evict_oldest()
            if freed < 0:
                return _free_bytes(self._folder) - size_bytes >= self._least_free
            free_bytes += freed
        return True

    def _evict_oldest(self) -> int:
        """Remove the oldest file that may leave; its size, -1 if none may or the system refuses."""
        victim = next((name for name in self._sizes if name not in self._reserved), None)
        if victim is None:
            return -1
        try:
            os.remove(self._folder / victim)
        except FileNotFoundError:
            pass  # somebody else removed it: it takes no room, so it leaves the book
        except OSError:
            return -1
        size_bytes = self._sizes.pop(victim)
        self.used_bytes -= size_bytes
        self.evicted += 1
        return size_bytes


def _free_bytes(folder: Path) -> int:
    system = os.statvfs(folder)
    return system.f_bavail * system.f_frsize
