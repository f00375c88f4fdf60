"""A store in the slot file of one run: pages by name, in slots by number; gone with the run.

    name -> slot      the least recently used leaves when no slot is free
                      held: being read or written, never a victim

It is to a real run what the profile's disk is to a simulation whose `storage.index` is "store". The
bytes and the file are `hw.storage`'s: a hang of that disk ends the run, as it does without names.
Refuses to know what is in a page, and to keep anything for the next run.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from hicache.allocator import cut
from hicache.operations import PageRuns
from hw.storage.file_store import FileStore
from hw.stores.contract import numbered


class SlotStore:
    """An open slot file (`hw.stores.contract.PageStore`), which `close` closes.

    evicted: pages that had to leave for others. declined: that found no slot.
    """

    def __init__(self, file: FileStore) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._slots: OrderedDict[str, int] = OrderedDict()  # written whole; oldest first
        self._free = list(range(file.pages - 1, -1, -1))
        self._held: dict[str, int] = {}  # names under way, how often
        self.evicted = self.declined = 0

    @property
    def name(self) -> str:
        """For messages."""
        return self._file.name

    def describe(self) -> str:
        """What was opened, for people: one line."""
        return f"{self._file.describe()}, by page hash"

    def leading(self, names: Sequence[str]) -> int:
        """See PageStore. Never fails: the book is in memory."""
        with self._lock:
            return self._leading(names)

    def read(self, names: Sequence[str], pages: PageRuns) -> int:
        """See PageStore."""
        with self._lock:
            came = self._leading(names)
            wanted = names[:came]
            slots = [self._slots[name] for name in wanted]
            for name in wanted:
                self._slots.move_to_end(name)
            self._hold(wanted)
        try:
            if came:
                self._file.read(_runs(slots), cut(pages, came)[0])
        finally:
            with self._lock:
                self._let_go(wanted)
        return came

    def write(self, pages: PageRuns, names: Sequence[str]) -> int:
        """See PageStore."""
        places = numbered(pages)
        assert len(places) == len(names), f"{len(names)} names for {len(places)} pages"
        with self._lock:
            slots = self._slots_for(names)
        new = dict(slots)
        sources = [page for page, name in zip(places, names, strict=True) if name in new]
        stored = False
        try:
            if new:
                self._file.write(_runs(sources), _runs(new.values()))
            stored = True
        finally:
            with self._lock:
                for name, slot in new.items():
                    if stored:
                        self._slots[name] = slot
                    else:
                        self._free.append(slot)
                self._let_go(new)
        with self._lock:
            return self._leading(names)

    def close(self) -> None:
        """See PageStore. Nothing stays."""
        self._file.close()

    def _leading(self, names: Sequence[str]) -> int:
        slots = self._slots
        return next((i for i, name in enumerate(names) if name not in slots), len(names))

    def _slots_for(self, names: Sequence[str]) -> list[tuple[str, int]]:
        """A slot for each name that is not there, in order, as far as there is room."""
        taken: list[tuple[str, int]] = []
        for name in names:
            if name in self._slots:
                self._slots.move_to_end(name)
                continue
            if name in self._held:  # another operation is writing it: it is not there yet
                break
            slot = self._free.pop() if self._free else self._evict(names)
            if slot < 0:
                self.declined += 1
                break
            taken.append((name, slot))
            self._hold((name,))
        return taken

    def _evict(self, kept: Sequence[str]) -> int:
        """The slot of the oldest page that may leave; -1 if none may."""
        victim = next((name for name in self._slots if name not in self._held), None)
        if victim is None or victim in kept:
            return -1
        self.evicted += 1
        return self._slots.pop(victim)

    def _hold(self, names: Iterable[str]) -> None:
        for name in names:
            self._held[name] = self._held.get(name, 0) + 1

    def _let_go(self, names: Iterable[str]) -> None:
        for name in names:
            self._held[name] -= 1
            if not self._held[name]:
                del self._held[name]


def _runs(numbers: Iterable[int]) -> PageRuns:
    """Numbers, in order, as runs of consecutive ones."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == sum(runs[-1]):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((number, 1))
    return tuple(runs)
