"""Where tables for people are printed: as wide as the terminal, and wide enough where there is
none.
"""

from __future__ import annotations

from rich.console import Console


def table_console(width: int = 200) -> Console:
    """A console on standard output; `width` columns where that is no terminal."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=width)
