"""Makes what README.md shows of real output: tables between markers, and the plots in docs/img.

    python docs/refresh.py          with the `dev` extra; takes half a minute

The demo's table is what `make demo` prints, the published machines' rows are those of
docs/published-machines.md, the plots are figures of notebooks/policy_ab.py. A test holds that the
README is up to date; it does not make the plots again.
"""

from __future__ import annotations

import base64
import contextlib
import io
import re
import textwrap
from itertools import pairwise
from pathlib import Path

from report.table import print_summary
from scenario.load import load_scenario
from sim.replay import replay

DOCS = Path(__file__).resolve().parent
REPOSITORY = DOCS.parent
README = REPOSITORY / "README.md"
NOTEBOOK = REPOSITORY / "notebooks" / "policy_ab.py"
# The names of its figures in order; None is not kept.
FIGURES = ("tokens_by_source", "ttft", None)
# Kinds of rows of the published machines that say something about a prediction.
HELD_OUT = re.compile(r"\| held out\b[^|]*\|$")
WIDTH = 110


def main() -> None:
    """Bring README.md and the plots up to date."""
    README.write_text(filled(README.read_text(encoding="utf-8")), encoding="utf-8")
    for name, png in figures():
        path = DOCS / "img" / f"{name}.png"
        path.write_bytes(png)
        print(f"{path.relative_to(REPOSITORY)}: {len(png) / 1000:.0f} kB")


def filled(text: str) -> str:
    """The README with every marked part made anew."""
    text = _between(text, "demo", f"```\n{demo_output()}```")
    return _between(text, "published machines", published_rows())


def demo_output() -> str:
    """What `make demo` prints, long lines folded."""
    summary = replay(load_scenario(REPOSITORY / "data" / "demo.toml")).summary
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        print_summary(summary, "results/demo")
    lines: list[str] = []
    for line in said.getvalue().splitlines():
        lines += (
            textwrap.wrap(line.rstrip(), WIDTH, subsequent_indent="  ")
            if len(line.rstrip()) > WIDTH
            else [line.rstrip()]
        )
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"


def published_rows() -> str:
    """The held-out rows of each table of docs/published-machines.md that has some."""
    page = (DOCS / "published-machines.md").read_text(encoding="utf-8")
    tables: list[str] = []
    blocks = page.split("\n\n")
    for caption, block in pairwise(blocks):
        rows = block.strip().splitlines()
        if len(rows) > 2 and rows[0].endswith("| kind |"):
            kept = [row for row in rows[2:] if HELD_OUT.search(row)]
            if kept:
                tables.append("\n".join([f"{caption.strip()}\n", *rows[:2], *kept]))
    return "\n\n".join(tables)


def figures() -> list[tuple[str, bytes]]:
    """Run the notebook; the figures that are kept, as PNG."""
    import jupytext
    from nbclient import NotebookClient

    notebook = jupytext.read(NOTEBOOK)
    resources = {"metadata": {"path": str(NOTEBOOK.parent)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    shown = [
        base64.b64decode(output["data"]["image/png"])
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if "image/png" in output.get("data", {})
    ]
    return [(name, png) for name, png in zip(FIGURES, shown, strict=True) if name]


def _between(text: str, name: str, content: str) -> str:
    head, begin, rest = text.partition(f"<!-- {name}: made by docs/refresh.py -->\n")
    _, end, tail = rest.partition(f"<!-- end of {name} -->")
    assert begin, f"README.md has no part {name}"
    assert end, f"README.md has no end of {name}"
    return f"{head}{begin}{content}\n{end}{tail}"


if __name__ == "__main__":
    main()
