"""A file that appears complete or not at all, compressed as its name's ending says.

".gz" is gzip without name and time in its header, so that the same text gives the same bytes (with
the same version of zlib); ".zst" is zstd. "-" is standard output, which is written as it comes.
"""

from __future__ import annotations

import gzip
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import IO, Any

from hicache.errors import InputError

# gzip's own default. Level 9 takes four times as long over block ids, and they come out larger.
_GZIP_LEVEL = 6


def write_lines(lines: Iterable[bytes], path: str | os.PathLike[str]) -> None:
    """Write `lines` to `path`. `InputError` if that cannot be done; what was there then stays.

    An error of `lines` itself comes through, and leaves no file either.
    """
    target = os.fspath(path)
    if target == "-":
        sys.stdout.buffer.writelines(lines)
        sys.stdout.buffer.flush()
        return
    unfinished = f"{target}.{os.getpid()}.part"
    try:
        with _opened(target, unfinished) as file:
            _fill(target, file, lines)
        try:
            os.replace(unfinished, target)
        except OSError as error:
            raise _unwritable(target, error) from None
    finally:
        if os.path.exists(unfinished):
            os.remove(unfinished)


def _opened(target: str, unfinished: str) -> IO[bytes]:
    if os.path.isdir(target):
        raise InputError(f"{target}: cannot be written: is a folder")
    try:
        return open(unfinished, "wb")
    except (OSError, ValueError) as error:
        raise _unwritable(target, error) from None


def _compressor(target: str, file: IO[bytes]) -> Any:
    if target.endswith(".gz"):
        return gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0)
    if target.endswith(".zst"):
        import pyarrow

        return pyarrow.CompressedOutputStream(pyarrow.PythonFile(file, mode="w"), "zstd")
    return file


def _fill(target: str, file: IO[bytes], lines: Iterable[bytes]) -> None:
    compressor = _compressor(target, file)
    try:
        for line in lines:
            # Not around the loop: an error of `lines` is about another file.
            try:
                compressor.write(line)
            except OSError as error:
                raise _unwritable(target, error) from None
    except BaseException:
        with suppress(Exception):
            compressor.close()
        raise
    try:
        compressor.close()
        file.close()
    except OSError as error:
        raise _unwritable(target, error) from None


def _unwritable(target: str, error: Exception) -> InputError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return InputError(f"{target}: cannot be written: {reason}")
