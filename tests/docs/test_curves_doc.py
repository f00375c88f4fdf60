"""docs/curves.md shows what the command prints, and names every key of its file and no other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from cli.curve_run import SCHEMA
from cli.curve_table import curve_text
from scenario.geometry import load_geometry
from sim.curve_sample import Sample
from sim.curve_study import CurveQuestions, study_curve
from sim.curve_trace import CurveRules
from traces.reader import open_trace

REPOSITORY = Path(__file__).resolve().parents[2]
TEXT = (REPOSITORY / "docs" / "curves.md").read_text(encoding="utf-8")
PAGE = 64


def test_what_is_shown_is_what_is_printed_and_all_keys_are_named() -> None:
    page_bytes = load_geometry("Qwen3-8B").kv_bytes_per_token * PAGE
    pages = (60 << 30) // page_bytes
    questions = CurveQuestions((), (pages,), True, (pages, (120 << 30) // page_bytes))
    trace = open_trace(REPOSITORY / "data" / "agents.jsonl")
    study = study_curve(trace, CurveRules(PAGE), questions)
    (shown,) = re.findall(r"```text\n(.*?)```", TEXT, re.S)
    assert shown == curve_text(study, page_bytes) + "curve: curve.json\nplot: curve.png\n"
    keys = set(study.document) | {"page_bytes"} | _sampled()
    named = {
        key
        for cell in re.findall(r"^\| (`[^|]+) \|", TEXT.split("## The file")[1], re.M)
        for key in re.findall(r"`(\w+)`", cell)
    }
    assert named == keys
    assert SCHEMA in TEXT


def _sampled() -> set[str]:
    trace: Any = open_trace(REPOSITORY / "data" / "agents.jsonl")
    return set(study_curve(trace, CurveRules(PAGE), CurveQuestions(), Sample(0.001)).document)
