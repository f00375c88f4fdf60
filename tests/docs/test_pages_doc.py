"""docs/pages.md: its example prints what it says, and its rules hold as they are written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from hicache.errors import InputError
from traces.cut import cutter_for
from traces.rows import Layout, Row

REPOSITORY = Path(__file__).resolve().parents[2]
TEXT = (REPOSITORY / "docs" / "pages.md").read_text(encoding="utf-8")


def test_the_example_prints_what_the_page_says() -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", TEXT, re.M | re.S)
    (output,) = re.findall(r"^```text\n(.*?)^```$", TEXT, re.M | re.S)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert done.stdout == output


def test_page_sizes_of_the_table() -> None:
    for page in (1, 128, 512, 1024):
        cutter_for(Layout(512), page, "full")
    with pytest.raises(InputError, match="128 and 256 would do"):
        cutter_for(Layout(512), 200, "full")
    for layout in (Layout(0), Layout(1), Layout(0, has_ids=False)):
        cutter_for(layout, 200, "full")


def test_a_partly_filled_block_is_known_as_far_as_it_was_filled() -> None:
    """700 tokens: 188 of the second block, which fill 2 of its pages of 64."""
    cutter = cutter_for(Layout(512), 64, "full")
    assert cutter.cut_row(Row(700, 1, 0, [0, 1]))[1:3] == (10, 0)
    assert cutter.cut_row(Row(1024, 1, 0, [0, 1]))[1:3] == (16, 10)


def test_an_id_with_another_length_is_another_content() -> None:
    cutter = cutter_for(Layout(0), 4, "full")
    cutter.cut_row(Row(8, 1, 0, [0], [8]))
    assert cutter.cut_row(Row(9, 1, 0, [0], [9]))[2] == 0
