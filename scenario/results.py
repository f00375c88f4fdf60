"""The result folder: complete or not there. It replaces nothing but an older result.

    summary.json       the totals
    requests.parquet   one row a request
    scenario.toml      the scenario as resolved
    timeline.json      optional: the run for Perfetto
    completions.*      optional: the record of every completion

The folder is written beside its place under another name and renamed at the end, so that a reader
never sees half of it and a run that fails leaves nothing. Every byte follows from what is passed
in: no time stamps, no random names inside, numbers in one fixed form.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hicache.errors import InputError
from scenario.columns import Columns
from scenario.parquet import ParquetWriter

if TYPE_CHECKING:
    import pandas

INTERVAL = "interval.json"
SUMMARY, REQUESTS, SCENARIO, TIMELINE = (
    "summary.json", "requests.parquet", "scenario.toml", "timeline.json",
)  # fmt: skip
COMPLETIONS_PREFIX = "completions."
# A folder is taken for a result if it has these and nothing foreign.
_ALWAYS_THERE = (SUMMARY, SCENARIO)

# What an extra file holds, or who writes it when given the path it should have.
Extra = bytes | str | Callable[[str], None]

SIGNIFICANT_DIGITS = 9


def check_target(folder: str | os.PathLike[str]) -> None:
    """Raises InputError if a result cannot be written to `folder`; ask before a long run, too.

    It can when nothing is there, an empty folder, or a folder that holds a result and nothing else.
    """
    place = os.path.realpath(os.fspath(folder))
    if not os.path.lexists(place):
        above = place
        while not os.path.lexists(above):
            above = os.path.dirname(above)
        if not os.path.isdir(above):
            raise InputError(
                f"{os.fspath(folder)}: {above} is a file, so no result folder can be made in it"
            )
        if not os.access(above, os.W_OK | os.X_OK):
            raise InputError(f"{os.fspath(folder)}: {above} cannot be written to")
        return
    if not os.path.isdir(place):
        raise InputError(f"{os.fspath(folder)} is a file; a result is a folder")
    names = sorted(os.listdir(place))
    foreign = next((name for name in names if not _is_ours(place, name)), None)
    if foreign is None and names and not all(name in names for name in _ALWAYS_THERE):
        foreign = names[0]
    if foreign is not None:
        raise InputError(
            f"{os.fspath(folder)} holds {foreign}, which belongs to no result: it is not replaced; "
            "choose another folder or empty it"
        )


def write_result(
    folder: str | os.PathLike[str],
    summary: Mapping[str, object],
    requests: Columns,
    scenario_text: str,
    *,
    extras: Mapping[str, Extra] | None = None,
    writer: ParquetWriter | None = None,
    meanwhile: Callable[[], object] | None = None,
) -> str:
    """Writes a result folder and returns its absolute path.

    `requests`: name -> column, all equally long. `extras`: file name -> content or a function that
    writes the file at the path it is given; names are `timeline.json`, `interval.json` and
    `completions.*`.
    `writer`: one that was started before the run, to save time; `meanwhile` is called while its
    child writes. Raises InputError where
    `check_target` does or the folder cannot be written, ParquetError when the rows cannot be; then
    nothing is left behind and an old result is still there.
    """
    check_target(folder)
    place = os.path.realpath(os.fspath(folder))
    parent, name = os.path.split(place)
    unfinished = os.path.join(parent, f".{name}.{os.getpid()}.unfinished")
    try:
        os.makedirs(parent, exist_ok=True)
        _remove_flat(unfinished)
        os.mkdir(unfinished)
        with writer or ParquetWriter() as started:
            started.write(requests, os.path.join(unfinished, REQUESTS), meanwhile)
        _write(os.path.join(unfinished, SUMMARY), summary_text(summary))
        _write(os.path.join(unfinished, SCENARIO), scenario_text)
        for extra, content in (extras or {}).items():
            assert extra in (TIMELINE, INTERVAL) or extra.startswith(COMPLETIONS_PREFIX), extra
            _write(os.path.join(unfinished, extra), content)
        _put_in_place(unfinished, place)
    except BaseException as error:
        _remove_flat(unfinished)
        if isinstance(error, OSError):
            raise InputError(f"{os.fspath(folder)}: {error.strerror or error}") from None
        raise
    return place


class Result:
    """A result folder, read: `summary` as written, the rows on demand."""

    def __init__(self, folder: str, summary: dict[str, Any], scenario_text: str) -> None:
        self.folder = folder
        self.summary = summary
        self.scenario_text = scenario_text

    def requests(self) -> pandas.DataFrame:
        """One row a request. Imports pandas and pyarrow."""
        import pandas

        return pandas.read_parquet(os.path.join(self.folder, REQUESTS))

    def column(self, name: str) -> list[Any]:
        """One column of the rows; imports pyarrow alone. Raises InputError where the rows cannot be
        read, or have no such column.
        """
        import pyarrow.parquet

        place = os.path.join(self.folder, REQUESTS)
        try:
            if name in pyarrow.parquet.read_schema(place).names:
                return pyarrow.parquet.read_table(place, columns=[name]).column(0).to_pylist()
        except (OSError, ValueError) as error:  # pyarrow's own derive from these
            raise InputError(f"{place}: {str(error).splitlines()[0]}") from None
        raise InputError(f"{place}: it has no column {name}")

    def sessions(self) -> pandas.DataFrame:
        """One row a session (`scenario.sessions.by_session`). Imports pandas and pyarrow."""
        import pandas
        import pyarrow.parquet

        from scenario.sessions import by_session

        table = pyarrow.parquet.read_table(os.path.join(self.folder, REQUESTS))
        return pandas.DataFrame(by_session(table.to_pydict()))


def load_result(folder: str | os.PathLike[str]) -> Result:
    """The result in `folder`. Raises InputError, naming the file, where there is none."""
    place = os.path.abspath(os.fspath(folder))
    texts: dict[str, str] = {}
    for name in _ALWAYS_THERE:
        try:
            with open(os.path.join(place, name), encoding="utf-8") as opened:
                texts[name] = opened.read()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"{os.fspath(folder)} is no result folder: {name}: {reason}") from None
    try:
        summary = json.loads(texts[SUMMARY])
    except json.JSONDecodeError as error:
        raise InputError(f"{os.path.join(place, SUMMARY)}: not valid JSON: {error}") from None
    return Result(place, summary, texts[SCENARIO])


def summary_text(summary: Mapping[str, object]) -> str:
    """The summary as JSON: keys in the order given, floats with nine significant digits.

    A float that is no number or infinite becomes null: JSON has no word for it.
    """
    return json.dumps(_plain(summary), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return float(f"{value:.{SIGNIFICANT_DIGITS}g}") if math.isfinite(value) else None
    if hasattr(value, "tolist"):
        # A numpy scalar or array.
        return _plain(value.tolist())
    raise TypeError(f"a summary cannot hold a {type(value).__name__}")


def _write(path: str, content: Extra) -> None:
    if callable(content):
        content(path)
        return
    data = content.encode() if isinstance(content, str) else content
    with open(path, "wb") as opened:
        opened.write(data)


def _is_ours(place: str, name: str) -> bool:
    known = name in (SUMMARY, REQUESTS, SCENARIO, TIMELINE, INTERVAL)
    known = known or name.startswith(COMPLETIONS_PREFIX)
    return known and os.path.isfile(os.path.join(place, name))


def _put_in_place(finished: str, place: str) -> None:
    # A folder can be renamed onto nothing or an empty folder only: an older result steps aside
    # first.
    aside = f"{finished}.old"
    if os.path.isdir(place) and os.listdir(place):
        check_target(place)
        _remove_flat(aside)
        os.rename(place, aside)
        try:
            os.rename(finished, place)
        except BaseException:
            os.rename(aside, place)
            raise
        _remove_flat(aside)
    else:
        os.rename(finished, place)


def _remove_flat(folder: str) -> None:
    """Removes a folder of files. There are no folders in it, since we made it."""
    if os.path.isdir(folder):
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
        os.rmdir(folder)
