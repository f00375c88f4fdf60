"""Standard streams of a process that was started without some of them."""

from __future__ import annotations

import os
import sys


def open_closed_streams() -> None:
    """Standard streams that the caller has closed (`>&-`) lead nowhere. Their numbers would else be
    given to the next files that are opened, and with them what a library prints.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8"))  # noqa: SIM115  # for good
