"""docs/published-machines.md shows what the script prints, and its commands."""

from __future__ import annotations

import re

from scenarios.reproduce import (
    BEGIN,
    END,
    GROUPS,
    HERE,
    LATENCY,
    PREFIX_TOKENS,
    THROUGHPUT,
    latency_run,
    tables,
    throughput_run,
    updated,
)

DOC = HERE.parent / "docs" / "published-machines.md"
REMAKE = "python scenarios/reproduce.py --update docs/published-machines.md"


def test_the_tables_are_those_of_the_script(results):
    page = DOC.read_text(encoding="utf-8")
    assert updated(page, tables(results)) == page, f"make them again: {REMAKE}"
    assert page.count(BEGIN) == page.count(END) == 1
    assert REMAKE in page


def test_every_run_has_its_command_in_the_page():
    text = DOC.read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S))
    given = {line.partition("#")[0].strip() for line in blocks.splitlines()}
    runs = [
        *(throughput_run("a", variant) for variant in THROUGHPUT),
        *(latency_run("a", 3500, variant) for variant in LATENCY),
    ]
    assert {run.command for run in runs} <= given
    for group in GROUPS:
        assert f"`mini-group-{group}`" in text
    for tokens in PREFIX_TOKENS:
        assert f"`latency-{tokens}.toml`" in text
