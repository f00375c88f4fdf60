"""Plots of a profile as files: a page of HTML, or a folder of PNGs."""

from __future__ import annotations

import os

from calibrate.page import page
from calibrate.plots import plots
from hicache.errors import InputError
from scenario.profile import Profile


def write_plots(profile: Profile, path: str) -> str:
    """Write the page (`path` ends in .html) or the PNGs; says what was written. Raises InputError
    where that cannot be.
    """
    try:
        if path.endswith(".html"):
            with open(path, "w", encoding="utf-8") as file:
                file.write(page(profile))
            return path
        os.makedirs(path, exist_ok=True)
        names: list[str] = []
        for plot in plots(profile):
            plot.figure.suptitle(plot.title)
            plot.figure.savefig(os.path.join(path, f"{plot.name}.png"), dpi=110)
            names.append(plot.name)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    return f"{path}: {', '.join(names)}"
