"""What was measured so far, on disk: a calibration that is stopped goes on where it was.

One JSON array a line: first ["calibration", version, identity], then one for each finished point,
and one for each session that has ended before all was done:

    ["point", key, at, role, ns..., width permille, note]
    ["session", when it began, seconds, facts of that moment]

A point that is to be visited again has how often at the end of its line; a later line of it has all
samples of the earlier ones. Lines are synced as they are written; a last line that was cut off is
dropped. The identity says of which machine, model and options the samples are: with another one a
journal is refused, not mixed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from hicache.errors import InputError
from scenario.measurement import Role, Sample

VERSION = 1


class Ended(NamedTuple):
    """An earlier session: when it began, how long it took, `calibrate.machine.momentary` facts."""

    began: str
    duration_s: float
    facts: dict[str, str]


class Journal:
    """The samples by key. `path` is made, or read and gone on with."""

    def __init__(self, path: str, identity: Mapping[str, str]) -> None:
        """Raises InputError for the journal of another machine or of other options."""
        self.path = path
        self._samples: dict[str, Sample] = {}
        self._left: dict[str, int] = {}
        self.sessions: list[Ended] = []
        header = ["calibration", VERSION, dict(identity)]
        length = self._read(header)
        self.resumed = sum(1 for key in self._samples if not self._left.get(key))
        try:
            self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115
            self._file.truncate(length)
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}") from None
        if not length:
            self._write(header)

    def __contains__(self, key: str) -> bool:
        return key in self._samples

    def __getitem__(self, key: str) -> Sample:
        return self._samples[key]

    def get(self, key: str) -> Sample | None:
        """What a point has so far, if anything."""
        return self._samples.get(key)

    def visits_left(self, key: str, visits: int) -> int:
        """Of a point that is visited so often: how many are still to come."""
        return self._left.get(key, 0) if key in self._samples else visits

    def add(self, key: str, sample: Sample, left: int = 0) -> None:
        """Keep what a point has. `left`: how often it will be visited again."""
        self._keep(key, sample, left)
        self._write(
            ["point", key, list(sample.at), sample.role, list(sample.ns), sample.width_permille,
             sample.note, *[left] * bool(left)]
        )  # fmt: skip

    def end_session(self, began: str, duration_s: float, facts: Mapping[str, str]) -> None:
        """Note a session that others will follow."""
        self.sessions.append(Ended(began, duration_s, dict(facts)))
        self._write(["session", *self.sessions[-1]])

    def close(self) -> None:
        """Leave the file as it is."""
        self._file.close()

    def discard(self) -> None:
        """Close and remove the file: all of it is in a profile now."""
        self.close()
        os.unlink(self.path)

    def _keep(self, key: str, sample: Sample, left: int) -> None:
        self._samples[key] = sample
        self._left[key] = left

    def _write(self, line: list[Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _read(self, header: list[Any]) -> int:
        """Take over what is there; how many bytes of it are good."""
        try:
            with open(self.path, "rb") as file:
                text = file.read()
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise InputError(f"{self.path}: {error.strerror}") from None
        good = 0
        for number, line in enumerate(text.splitlines(keepends=True)):
            if not line.endswith(b"\n"):
                break  # cut off
            try:
                entry = json.loads(line)
                if number == 0:
                    self._check(header, entry)
                elif isinstance(entry, list) and entry[:1] == ["session"]:
                    _, began, duration_s, *facts = entry  # older versions wrote no facts
                    self.sessions.append(_ended(began, duration_s, *facts))
                else:
                    _, key, at, role, ns, width, note, *left = entry
                    self._keep(key, _sample(at, role, ns, width, note), sum(left))
            except (ValueError, TypeError) as error:
                raise InputError(
                    f"{self.path}, line {number + 1}: no journal of a calibration ({error}); "
                    "remove it, or give --fresh"
                ) from None
            good += len(line)
        return good

    def _check(self, header: list[Any], found: Any) -> None:
        if not isinstance(found, list) or len(found) != len(header) or found[0] != header[0]:
            raise ValueError("its first line is another")
        if found[1] != header[1]:
            raise ValueError(f"version {found[1]}")
        for name, value in header[2].items():
            if found[2].get(name) != value:
                raise InputError(
                    f"{self.path}: a calibration with {name} {found[2].get(name)!r} was begun "
                    f"there, this one has {value!r}; finish that one, or give --fresh"
                )


def _sample(at: list[int], role: Role, ns: list[int], width: int, note: str) -> Sample:
    if not ns or not all(isinstance(each, int) for each in (*at, *ns)):
        raise ValueError("a point without samples")
    return Sample(at=tuple(at), ns=tuple(ns), role=role, width_permille=width, note=note)


def _ended(began: Any, duration_s: Any, facts: Any = None) -> Ended:
    told = {str(name): str(value) for name, value in dict(facts or {}).items()}
    return Ended(str(began), float(duration_s), told)
