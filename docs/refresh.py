"""Makes what README.md shows of real output: tables between markers, and the plots in docs/img.

    python docs/refresh.py          with the `dev` extra; takes half a minute

The demo's table is what `make demo` prints; the validation's rows are read from the committed
`validation.json` of each scenario; the published machines' rows, and what of them is input
or inferred, are those of docs/published-machines.md; the plots are figures of
notebooks/policy_ab.py. What docs/compare.md and docs/write-a-policy.md show of a comparison is made
as well. Tests hold that the texts are up to date; they do not make the plots again.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import io
import json
import re
import tempfile
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
# Kinds of rows of the published machines that have a published number beside the predicted one.
PUBLISHED = re.compile(r"\| (held out|input)\b[^|]*\|$")
INFERRED = "## What is input, what is inferred"
WIDTH = 110
# Runs on hardware, judged by benchmarks/validation/judge.py, and its limits in the README's words.
# Of a scenario that is in several folders, the last one counts.
RUNS = [
    REPOSITORY / "benchmarks" / "validation" / "results" / name
    for name in ("h200-2026-11-30-2001",)
]
MISSED = {
    "ttft_mean": "mean TTFT", "ttft_p90": "p90", "ttft_p99": "p99", "throughput": "throughput",
}  # fmt: skip


def main() -> None:
    """Bring README.md and the plots up to date."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    ).parse_args()
    README.write_text(filled(README.read_text(encoding="utf-8")), encoding="utf-8")
    fill_comparisons()
    for name, png in figures():
        path = DOCS / "img" / f"{name}.png"
        path.write_bytes(png)
        print(f"{path.relative_to(REPOSITORY)}: {len(png) / 1000:.0f} kB")


def filled(text: str) -> str:
    """The README with every marked part made anew."""
    text = _between(text, "demo", f"```\n{demo_output()}```")
    text = _between(text, "validation", validation_rows())
    return _between(text, "published machines", published_rows())


def fill_comparisons() -> None:
    """Make the first output of docs/compare.md and docs/write-a-policy.md anew; the latter's policy
    takes part.
    """
    from cli.compare_table import contrast_lines
    from sim.compare import compare
    from sim.compare_variants import Study, variants_of_key

    write = (DOCS / "write-a-policy.md").read_text(encoding="utf-8")
    policies = ["cost", "always"]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "my_policies.py"
        file.write_text("\n\n".join(re.findall(r"```python\n(.*?)```", write, re.S)))
        variants = variants_of_key("restore.policy", [*policies, f"{file}:ShortReads"])
        data = REPOSITORY / "data"
        study = Study((str(data / "agents.jsonl"),), tuple(variants), str(data / "demo.toml"))
        found = compare(study)
    for name, contrast in zip(("compare.md", "write-a-policy.md"), found.contrasts, strict=True):
        path = DOCS / name
        shown = "\n".join(contrast_lines(found, contrast))
        head, begin, rest = path.read_text(encoding="utf-8").partition("```text\n")
        path.write_text(f"{head}{begin}{shown}\n```{rest.partition('```')[2]}", encoding="utf-8")


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


def validation_rows() -> str:
    """How far the predictions of the runs on hardware were off: a row a scenario."""
    names = ("ttft_mean", "ttft_p90", "ttft_p99", "throughput")
    rows = [
        "| scenario | policy | requests | mean TTFT | TTFT p90 | p99 | throughput | missed |",
        "|---|---|---:|---:|---:|---:|---:|---|",
    ]
    newest = {path.parent.name: path for runs in RUNS for path in runs.glob("*/validation.json")}
    for _, path in sorted(newest.items()):
        found = json.loads(path.read_text(encoding="utf-8"))
        errors = [
            f"{found[f'{name}_error_percent']:+.1f} ({found['runs_difference_percent'][name]:+.1f})"
            for name in names
        ]
        over = [each["name"] for each in found["limits"] if not each["held"]]
        missed = ", ".join(dict.fromkeys(MISSED.get(name, "tokens") for name in over))
        cells = [path.parent.name, found["policy"], str(found["requests"]), *errors, missed or "-"]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def published_rows() -> str:
    """What docs/published-machines.md says was inferred, and of its tables the published rows."""
    page = (DOCS / "published-machines.md").read_text(encoding="utf-8")
    after = page.split(INFERRED)[1].split("\n\n")
    inferred = next(block for block in after if block.startswith("|"))
    tables = [inferred]
    blocks = page.split("\n\n")
    for caption, block in pairwise(blocks):
        rows = block.strip().splitlines()
        if len(rows) > 2 and rows[0].endswith("| kind |"):
            kept = [row for row in rows[2:] if PUBLISHED.search(row)]
            if kept:
                title = caption.strip().splitlines()[-1]
                tables.append("\n".join([f"{title}\n", *rows[:2], *kept]))
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
