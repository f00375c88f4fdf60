"""docs/restore-or-recompute.md says what the latest committed measurement says."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "docs"))

import restore_or_recompute as doc  # noqa: E402


def _row(tokens: int, seconds: float) -> dict[str, object]:
    return {
        "tokens": tokens, "hit_tokens": tokens - 30, "bytes": 47 << 20, "recompute_s": seconds,
        "rest_s": 0.01, "copy_s": dict.fromkeys(doc.BACKENDS, 0.002),
        "read_s": {"cold": 0.04, "dropped": 0.05, "warm": 0.003},
    }  # fmt: skip


def _choice(tier: str, chosen: str, right: bool) -> dict[str, object]:
    return {
        "tokens": 350, "tier": tier, "faster": "restore", "near": False, "chosen": chosen,
        "right": right, "choices_until_right": 3, "reasons": [],
    }  # fmt: skip


RESULT = {
    "machine": "a GPU", "model": "a model", "page_tokens": 64, "date": "2026-11-29",
    "command": "python a.py", "rows": [_row(350, 0.024), _row(1000, 0.06)],
    "choices": [_choice("L2", "restore", True), _choice("L3 cold", "recompute", False)],
    "mixed": [_choice("L2", "both", False)], "skipped": [],
    "rotating": [
        {
            "tokens": 350, "tier": "L2", "requests": 48, "loss": 0.0213,
            "seconds": {"never": 1.0, "always": 0.5, "cost": 0.51},
            "mean_ttft_s": {"never": 0.5, "always": 0.25, "cost": 0.26},
        }
    ],
}  # fmt: skip


def test_the_page_is_that_of_the_latest_measurement():
    path = doc.latest()
    page = doc.PAGE.read_text(encoding="utf-8")
    if path is None:
        assert "Not measured yet." in page
        pytest.skip("nothing was measured yet")
    assert doc.filled(page, json.loads(path.read_text(encoding="utf-8"))) == page
    assert doc.PLOT.exists()


def test_the_tables_say_what_was_measured():
    text = doc.body(RESULT)
    # 12 ms from L2, twice as fast; 52 ms from a cold L3.
    assert "| 350 | 24.0 | 12.0 (2.00) | 52.0 (0.46) | 15.0 (1.60) |" in text
    assert "| 350 | L2 | restore | restore (3) | both, wrong (3) |" in text
    assert "| 350 | L3 cold | restore | recompute, wrong (3) | - |" in text
    assert "| 350 | L2 | 48 | 1.00 (0.50) | 0.50 (0.25) | 0.51 (0.26) | +2.1 % |" in text
    assert "lack of time" not in text
    cut = copy.deepcopy(RESULT) | {"skipped": ["choices of 8000 tokens, L2"]}
    assert "Not measured for lack of time: choices of 8000 tokens, L2." in doc.body(cut)


def test_the_plot_is_a_picture(tmp_path):
    doc.draw(RESULT, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
