"""docs/meet.md: its example prints what it says, and what it says of it is so."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
TEXT = (REPOSITORY / "docs" / "meet.md").read_text(encoding="utf-8")


def test_the_example_prints_what_the_page_says() -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", TEXT, re.M | re.S)
    output = re.findall(r"^```text\n(.*?)^```$", TEXT, re.M | re.S)[-1]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert done.stdout == output


def test_what_is_said_of_the_example_is_in_it() -> None:
    rows = dict(re.findall(r"^(\w[\w, -]+?) +(\d+ +\d+ +\d+)$", TEXT, re.M))
    shown = {name: [int(each) for each in row.split()] for name, row in rows.items()}
    quiet, busy, fast = ({name: row[column] for name, row in shown.items()} for column in range(3))
    others = ("never", "always", "cost", "cost, layer-wise")
    assert quiet["meet, layer-wise"] < 0.9 * min(quiet[name] for name in others)
    assert fast["meet, layer-wise"] < 1.01 * min(fast[name] for name in others)
    assert busy["cost, queue aware"] < 0.7 * busy["cost"]
    assert busy["meet, both"] < 0.9 * busy["meet, layer-wise"] < 0.9 * busy["cost"]
    assert 2 * busy["always"] < busy["cost"], "others wait for what is computed again"
    assert busy["meet, both"] < 0.85 * busy["always"]
