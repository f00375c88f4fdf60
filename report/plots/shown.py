"""A figure where it is wanted: in a notebook, or, when the notebook runs as a script, in a file."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING

from report.plots.style import save, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Of a figure in a notebook: small enough to be kept, large enough to be read.
DOTS_PER_INCH = 110


def in_notebook() -> bool:
    """Whether a kernel runs this."""
    shell = sys.modules.get("IPython")
    return shell is not None and shell.get_ipython() is not None


def show(figure: Figure, folder: str | os.PathLike[str], name: str) -> None:
    """Show `figure` here, or save it as folder/NAME.png and say where."""
    if in_notebook():
        from IPython.display import Image, display

        picture = io.BytesIO()
        with styled():
            figure.savefig(picture, format="png", dpi=DOTS_PER_INCH)
        display(Image(picture.getvalue()))
        return
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"{name}.png")
    save(figure, path)
    print(f"figure: {path}")
