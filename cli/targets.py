"""Where a command may write: never over a trace, nor over what another has made unless told to.

Whatever a command writes says within its first bytes which command made it, so that the same
command run again replaces its own files and nothing else. Refuses to write.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from hicache.errors import InputError

_HEAD_BYTES = 4096


def check_target(path: str, command: str, *, replaces: bool, trace: str | None = None) -> None:
    """`InputError` if `hicache COMMAND` must not write a file at `path`: before anything is read.

    `replaces`: whether it may be over a file of somebody else's; `trace` it is never.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        mode = None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{path}: cannot be written: {reason}") from None
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise InputError(f"{path}: cannot be written: there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise InputError(f"{path}: cannot be written: {folder} cannot be written to")
    if mode is None:
        return
    if not stat.S_ISREG(mode):
        raise InputError(f"{path}: is no file that could be replaced")
    if trace and os.path.exists(trace) and os.path.samefile(path, trace):
        raise InputError(f"{path}: is the trace itself, which is never overwritten")
    if replaces:
        return
    with open(path, "rb") as file:
        head = file.read(_HEAD_BYTES)
    if head and f"hicache {command}".encode() not in head:
        raise InputError(
            f"{path}: is there already and was not made by hicache {command}; --force replaces it"
        )


def check_apart(named: Mapping[str, str | None]) -> None:
    """`InputError` if two options, by name, name the same file; None names none."""
    owners: dict[str, str] = {}
    for option, path in named.items():
        if path is not None:
            place = path if path == "-" else os.path.abspath(path)
            other = owners.setdefault(place, option)
            if other != option:
                raise InputError(f"{other} and {option} are both {path}: they are two files")


def check_picture(option: str, path: str | None) -> None:
    """`InputError` if a picture's name does not say what kind it is of."""
    if path is not None and not path.endswith((".png", ".svg")):
        raise InputError(f"{option} is {path}: its name must end in .png or .svg")
