"""Columns of a table as Arrow's own buffers, and those as a Parquet file, alike in any process.

Encoding needs no library, so that a program can gather and encode without importing pyarrow; only
`write_payload` imports it. It refuses what a result has no use for: nested values, dates, objects.
"""

from __future__ import annotations

import math
import operator
from array import array
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any, Protocol

import msgspec


class Rows(Protocol):
    """The values of one column: a list, an `array.array`, a numpy array of one dimension.

    int, float, bool or str, each also with None for "no value"; among floats NaN says the same. An
    `array('q')`, an `array('d')` or a numpy array of 8-byte numbers is taken as it is.
    """

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __contains__(self, value: Any, /) -> bool: ...


Columns = Mapping[str, Rows]

ROWS_OF_A_GROUP = 1 << 20

_ALL_VALID = memoryview(b"")


class Column(msgspec.Struct, array_like=True):
    """One column on its way: where its bytes lie in the payload and how to read them."""

    name: str
    # "int": int64, "float": float64, "bool": one bit each, "text": int32 places in `words`.
    kind: str
    values_bytes: int
    # 0: every row has a value. Else one bit a row, 1 where it has one.
    valid_bytes: int
    words: list[str]


class Payload:
    """Encoded columns of `rows` rows: a description, and two buffers a column as Arrow has them.

    The values come first, then the validity (empty where every row has a value). Bits count from
    the lowest.
    """

    __slots__ = ("buffers", "columns", "rows")

    def __init__(self, rows: int, columns: list[Column], buffers: list[memoryview]) -> None:
        self.rows = rows
        self.columns = columns
        self.buffers = buffers


def encode_columns(columns: Columns) -> Payload:
    """The columns as buffers. A column has the type of its first value; without any, float.

    Raises ValueError, naming the column, when the lengths differ, and TypeError for a value of a
    type that Parquet rows do not have here or of another type than the first.
    """
    described: list[Column] = []
    buffers: list[memoryview] = []
    rows = -1
    for name, column in columns.items():
        if rows >= 0 and len(column) != rows:
            raise ValueError(f"column {name!r} has {len(column)} rows, the ones before it {rows}")
        rows = len(column)
        kind, words, values, valid = _encoded(name, column)
        described.append(Column(name, kind, values.nbytes, valid.nbytes, words))
        buffers += [values, valid]
    return Payload(max(rows, 0), described, buffers)


def write_payload(payload: Payload, path: str) -> None:
    """Writes the Parquet file at `path`. Raises what pyarrow and the file system raise."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    # Arrays are put together from buffers: `pyarrow.array` would import pandas, which takes 0.4 s.
    kinds = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "text": pa.int32()}
    arrays: list[Any] = []
    for place, column in enumerate(payload.columns):
        values, valid = payload.buffers[2 * place], payload.buffers[2 * place + 1]
        buffers = [pa.py_buffer(valid) if valid.nbytes else None, pa.py_buffer(values)]
        built = pa.Array.from_buffers(kinds[column.kind], payload.rows, buffers)
        if column.kind == "text":
            encoded = [word.encode() for word in column.words]
            ends = pa.py_buffer(array("i", accumulate(map(len, encoded), initial=0)))
            words = [None, ends, pa.py_buffer(b"".join(encoded))]
            built = pa.DictionaryArray.from_arrays(
                built, pa.Array.from_buffers(pa.string(), len(encoded), words)
            )
        arrays.append(built)
    table = pa.Table.from_arrays(arrays, names=[column.name for column in payload.columns])
    texts = [column.name for column in payload.columns if column.kind == "text"]
    # Everything that a newer pyarrow could choose otherwise is chosen here.
    pq.write_table(
        table,
        path,
        version="2.6",
        data_page_version="1.0",
        compression="zstd",
        compression_level=1,
        row_group_size=ROWS_OF_A_GROUP,
        # Numbers of a run hardly repeat: a dictionary would only make the file larger.
        use_dictionary=texts,  # pyright: ignore[reportArgumentType]
        write_statistics=True,
    )


def _encoded(name: str, column: Rows) -> tuple[str, list[str], memoryview, memoryview]:
    """Kind, words, values and validity of one column."""
    kind = _kind_of_buffer(column)
    if kind == "int":
        return kind, [], _bytes_of(column), _ALL_VALID
    if kind == "float":
        return kind, [], _bytes_of(column), _numbers_among(column)
    to_list = getattr(column, "tolist", None)
    column = to_list() if to_list else column
    first = next((each for each in column if each is not None), 0.0)
    try:
        if isinstance(first, bool):
            return "bool", [], _bits(bytes(map(_truth, column))), _present(column)
        if isinstance(first, int):
            return "int", [], _bytes_of(array("q", _filled(column, 0))), _present(column)
        if isinstance(first, float):
            numbers = array("d", _filled(column, math.nan))
            return "float", [], _bytes_of(numbers), _numbers_among(numbers)
        if isinstance(first, str):
            texts = _filled(column, first)
            # Numbered in the order of their first row: the same rows give the same bytes.
            words = list(dict.fromkeys(texts))
            if not all(isinstance(word, str) for word in words):
                raise TypeError("not every value is a text")
            places = {word: place for place, word in enumerate(words)}
            numbers = array("i", [places[text] for text in texts])
            return "text", words, _bytes_of(numbers), _present(column)
    except (TypeError, OverflowError) as error:
        raise TypeError(f"column {name!r} of {type(first).__name__}: {error}") from None
    raise TypeError(
        f"column {name!r} holds a {type(first).__name__}: it must be int, float, bool or str"
    )


def _kind_of_buffer(column: Rows) -> str:
    """The kind of a column that is a buffer of 8-byte numbers already; "" for any other."""
    try:
        view = memoryview(column)  # pyright: ignore[reportArgumentType]
    except TypeError:
        return ""
    if view.ndim != 1 or not view.c_contiguous or view.itemsize != 8:
        return ""
    return {"q": "int", "l": "int", "d": "float"}.get(view.format, "")


def _bytes_of(column: Any) -> memoryview:
    # An empty view cannot be cast.
    return memoryview(column).cast("B") if len(column) else memoryview(b"")


def _filled(column: Rows, filler: Any) -> Rows:
    return [filler if each is None else each for each in column] if None in column else column


def _present(column: Rows) -> memoryview:
    """The validity of a column with None where there is no value."""
    return _bits(bytes(each is not None for each in column)) if None in column else _ALL_VALID


def _numbers_among(column: Rows) -> memoryview:
    """The validity of a column of floats with NaN where there is no value."""
    # A sum with a NaN is one.
    return _bits(bytes(map(operator.eq, column, column))) if math.isnan(sum(column)) else _ALL_VALID


def _bits(flags: bytes) -> memoryview:
    """One bit for each byte of `flags` (0 or 1), lowest first, by arithmetic of long integers.

    flags  f0 f1 .. f7 | f8 ..      every 8th from k on, as one long integer, shifted by k
    bits   f0 + 2 f1 + .. + 128 f7 | f8 + ..
    """
    length = -(-len(flags) // 8)
    packed = 0
    for k in range(8):
        packed |= int.from_bytes(flags[k::8], "little") << k
    return memoryview(packed.to_bytes(length, "little"))


def _truth(value: object) -> int:
    if value is not None and not isinstance(value, bool):
        raise TypeError(f"{value!r} is no truth value")
    return int(bool(value))
