"""What a sweep leaves: one Parquet, and until it is complete a journal of what is done.

    sweep.parquet            a row a cell: scenario, its options, figures, error, the cell's digest
    sweep.parquet.journal    JSON lines, one for each cell as it ends; removed with the last one

Rows of either are used again by the digest of their cell, so that a sweep that was stopped goes on,
and one that grew runs what is new. A journal's last line that was cut off is left out. The Parquet
is replaced as a whole; its bytes follow from its rows alone.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import IO, Any

from hicache.errors import InputError
from scenario.columns import encode_columns, write_payload
from scenario.records import value_types
from sim.sweep import Cell
from sim.sweep_cell import Done, Figures

DIGEST, ERROR, FILE, FOLDER = "cell", "error", "scenario", "folder"
FIRST_COLUMN = "cell_number"
JOURNAL_ENDING = ".journal"
_HEAD = {"hicache sweep": 1}


class Journal:
    """The cells that are done, on disk as soon as each is. A context manager."""

    def __init__(self, out: str) -> None:
        self.path = out + JOURNAL_ENDING
        self._file: IO[bytes] | None = None

    def read(self) -> dict[str, Figures]:
        """Figures of what is done, by digest. Raises InputError if it is no journal of ours."""
        try:
            with open(self.path, "rb") as file:
                head, *lines = file.read().split(b"\n")
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise InputError(f"{self.path}: {error.strerror}") from None
        if _decoded(head) != _HEAD:
            raise InputError(f"{self.path}: is no journal of a sweep; it is not replaced")
        found: dict[str, Figures] = {}
        for line in lines:
            row = _decoded(line)
            if isinstance(row, dict) and isinstance(row.get("figures"), dict):
                found[row[DIGEST]] = row["figures"]
        return found

    def add(self, digest: str, figures: Figures) -> None:
        """Keep a cell that is done."""
        if self._file is None:
            self._file = self._opened()
        line = json.dumps({DIGEST: digest, "figures": figures}, separators=(",", ":"))
        self._file.write(line.encode() + b"\n")
        self._file.flush()

    def _opened(self) -> IO[bytes]:
        try:
            file = open(self.path, "ab")  # noqa: SIM115 - closed with the journal
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written: {error.strerror}") from None
        # Behind a line that was cut off, the next one begins anew.
        file.write(b"\n" if file.tell() else json.dumps(_HEAD).encode() + b"\n")
        return file

    def remove(self) -> None:
        """Nothing is left to go on from."""
        self.close()
        if os.path.exists(self.path):
            os.unlink(self.path)

    def close(self) -> None:
        """Close the file; what is in it stays."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _decoded(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def check_out(out: str, *, force: bool = False) -> None:
    """Raises InputError if the Parquet cannot be written there: before anything is run."""
    if not out.endswith(".parquet"):
        raise InputError(f"--out is {out}: its name must end in .parquet")
    if os.path.isdir(out):
        raise InputError(f"{out}: is a folder, not a file that could be replaced")
    folder = os.path.dirname(out) or "."
    if not os.path.isdir(folder):
        raise InputError(f"{out}: cannot be written: there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise InputError(f"{out}: cannot be written: {folder} cannot be written to")
    if os.path.exists(out) and not force and not _is_ours(out):
        raise InputError(
            f"{out}: is there already and was not made by hicache sweep; --force replaces it"
        )


def _is_ours(out: str) -> bool:
    import pyarrow
    import pyarrow.parquet

    try:
        names = pyarrow.parquet.read_schema(out).names
    except (pyarrow.ArrowException, OSError):
        return False
    return names[:1] == [FIRST_COLUMN] and DIGEST in names


def known_rows(out: str) -> dict[str, Figures]:
    """Figures of the rows in an earlier Parquet, by digest; none if there is no such file."""
    if not os.path.exists(out) or not _is_ours(out):
        return {}
    import pyarrow.parquet

    # What that sweep varied is no figure: another may not, and would have a column of it.
    others = {FIRST_COLUMN, FILE, DIGEST, ERROR, FOLDER, *value_types()}
    rows = pyarrow.parquet.read_table(out).to_pylist()
    return {
        row[DIGEST]: {name: value for name, value in row.items() if name not in others}
        for row in rows
        if not row[ERROR]
    }


def prepare_to_write() -> None:
    """Begin to import what `write_table` takes: a fifth of a second that costs nothing while other
    processes run the cells. In a thread, where Ctrl-C cannot leave half of a library imported.
    """
    if "pyarrow.parquet" not in sys.modules:
        threading.Thread(target=import_module, args=("pyarrow.parquet",)).start()


def write_table(
    out: str,
    cells: Sequence[Cell],
    figures: Mapping[str, Figures],
    errors: Mapping[str, str],
    folders: Mapping[int, str],
) -> None:
    """Write a row for each of `cells`, as they come. `figures` and `errors` are by digest; a cell
    with neither is one that was not run, and has no row. Raises InputError.
    """
    shown = [cell for cell in cells if cell.digest in figures or cell.digest in errors]
    options = list(cells[0].options)
    columns: dict[str, list[Any]] = {FIRST_COLUMN: [cell.number for cell in shown]}
    if any(cell.file for cell in shown):
        columns[FILE] = [cell.file or None for cell in shown]
    for key in options:
        columns[key] = [cell.options[key] for cell in shown]
    for name in dict.fromkeys(name for each in figures.values() for name in each):
        columns[name] = _of_one_kind([figures.get(cell.digest, {}).get(name) for cell in shown])
    columns[ERROR] = [errors.get(cell.digest) for cell in shown]
    if folders:
        columns[FOLDER] = [folders[cell.number] for cell in shown]
    columns[DIGEST] = [cell.digest for cell in shown]
    if not any(columns[ERROR]):
        columns[ERROR] = [""] * len(shown)
    unfinished = f"{out}.{os.getpid()}.part"
    try:
        write_payload(encode_columns(columns), unfinished)
        os.replace(unfinished, out)
    except OSError as error:
        raise InputError(f"{out}: cannot be written: {error.strerror or error}") from None
    finally:
        if os.path.exists(unfinished):
            os.unlink(unfinished)


def _of_one_kind(column: list[Any]) -> list[Any]:
    """Numbers that are whole in some rows only as floats in all of them."""
    if any(isinstance(each, float) for each in column):
        return [float(each) if isinstance(each, int) else each for each in column]
    return column


def check_same_trace(cells: Sequence[Cell], done: Done, digests: dict[str, str]) -> None:
    """Raises InputError where two cells read different contents under one path: the trace was
    changed while the sweep ran, or another node has another file there.
    """
    path = cells[done.number].scenario.trace.path
    sha256 = done.figures.get("trace.sha256") or ""
    if sha256 and digests.setdefault(path, sha256) != sha256:
        raise InputError(
            f"{path}: its content is another for {cells[done.number].label} than before: it must "
            "not change while a sweep runs, and must be the same on every node"
        )
