"""What a run leaves while it goes on: a folder beside its result, from which a run that was killed
can be repeated as far as it came.

    results/run-x.unfinished/scenario.toml       as resolved
    results/run-x.unfinished/completions.jsonl   the record so far

It goes once the result is written, and stays where that never happens: `hicache replay --record
results/run-x.unfinished` then makes the result of what was done. The engine's thread only collects
lines; the kernel gets them when there are many, and now and then (`flush`). They are safe from the
end of this process then, not from that of the machine: nothing is synced.

A disk that takes no more lines ends the journal, not the run. An older run's folder is not touched.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from hicache.errors import InputError
from scenario.results import SCENARIO

RECORD = "completions.jsonl"
SUFFIX = ".unfinished"
FLUSH_EVERY_LINES = 256


class Journal:
    """The folder of one run, to be made by `begin`. Only the engine's thread may use it."""

    def __init__(self, result_folder: str, tell: Callable[[str], object] = print) -> None:
        """`tell` hears of it if the record cannot be written any more."""
        self._wanted = os.path.realpath(result_folder) + SUFFIX
        self._tell = tell
        self._lines: list[str] = []
        self._fd = -1
        self.folder = ""  # while there is one

    def begin(self, scenario_text: str) -> None:
        """Make the folder. Raises InputError."""
        assert not self.folder
        place, number = self._wanted, 1
        try:
            os.makedirs(os.path.dirname(place), exist_ok=True)
            while True:
                try:
                    os.mkdir(place)
                    break
                except FileExistsError:
                    number += 1
                    place = f"{self._wanted}-{number}"
            self.folder = place
            with open(os.path.join(place, SCENARIO), "w", encoding="utf-8") as written:
                written.write(scenario_text)
            self._fd = os.open(
                os.path.join(place, RECORD), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666
            )
        except OSError as error:
            self.discard()
            raise InputError(f"{place}: {error.strerror}") from None

    def write(self, line: str) -> None:
        """One more line of the record."""
        self._lines.append(line)
        if len(self._lines) >= FLUSH_EVERY_LINES:
            self.flush()

    def flush(self) -> None:
        """Hand what was collected to the kernel."""
        if not self._lines:
            return
        data = memoryview("".join(f"{line}\n" for line in self._lines).encode())
        self._lines.clear()
        try:
            while self._fd >= 0 and data:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            # Half a line may be there: the record ends at it, so that none may follow.
            self._close_file()
            self._tell(f"{self.folder}: the record is not written any further: {error.strerror}")

    def close(self) -> None:
        """Leave the folder to whoever wants to repeat the run."""
        self.flush()
        self._close_file()

    def discard(self) -> None:
        """Remove the folder: the result holds everything."""
        self._lines.clear()
        self._close_file()
        if self.folder:
            for name in (SCENARIO, RECORD):
                path = os.path.join(self.folder, name)
                if os.path.lexists(path):
                    os.unlink(path)
            os.rmdir(self.folder)
            self.folder = ""

    def _close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
