"""docs/sglang.md: its commands are understood, its tables name what there is, and nothing else."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest

from report.counters import COUNTERS, SPREADS
from scenario.presets import PRESET_NAMES
from scenario.sglang_args import read_server_args
from scenario.sglang_config import CACHE_KEYS
from scenario.sglang_flags import known_flags
from scenario.sglang_rules import RULES, SGLANG_PRESETS

DOCS = Path(__file__).resolve().parents[2] / "docs"
TEXT = (DOCS / "sglang.md").read_text(encoding="utf-8")
COMMANDS = [
    line
    for block in re.findall(r"^```sh\n(.*?)^```$", TEXT, re.M | re.S)
    for line in block.splitlines()
    if line.startswith("hicache ")
]


def _module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sglang_flags_doc", DOCS / "sglang_flags.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _cells(heading: str) -> list[list[str]]:
    part = TEXT.split(heading)[1].split("\n## ")[0].split("\n### ")[0]
    rows = re.findall(r"^\| (.*) \|$", part, re.M)
    return [row.split(" | ") for row in rows[1:]]


def test_the_arguments_of_every_command_are_taken() -> None:
    texts = []
    for command in COMMANDS:
        words = shlex.split(command, comments=True)
        if "--sglang-args" in words:
            texts.append(words[words.index("--sglang-args") + 1])
        elif words[1:3] == ["preset", "args"]:
            texts.append(words[3])
        for word in words:
            if word.startswith("sglang-"):
                assert word in PRESET_NAMES
    assert len(texts) >= 2
    for text in texts:
        if not text.endswith("..."):
            assert read_server_args(text).options["tiers.page_size_tokens"] == 64


def test_every_argument_that_is_explained_is_one() -> None:
    named = set(
        re.findall(r"`(--[a-z0-9-]+)", "\n".join(row[0] for row in _cells("of a server\n")))
    )
    assert len(named) > 20
    assert named <= set(known_flags())


def test_every_key_of_the_extra_configuration_is_explained() -> None:
    named = set(re.findall(r"`(\w+)`", "\n".join(row[0] for row in _cells("### The extra"))))
    assert set(CACHE_KEYS) <= named


def test_every_counter_is_explained_and_no_other() -> None:
    cells = "\n".join(row[0] for row in _cells("## Counters side by side"))
    named = set(re.findall(r"`(\w+)(?:\{\w+\})?`", cells))
    assert named == {each.name for each in COUNTERS} | {each.name for each in SPREADS}


def test_the_timeouts_and_limits_are_those_of_the_rules() -> None:
    by_title = {row[0]: row[1:] for row in _cells("## Presets")}
    for version in range(len(SGLANG_PRESETS)):
        options = RULES["prefetch stop"].options
        stop, base, slope, most = (values[version] for values in options.values())
        shown = f"{base:g} s, {slope:g} s, {f'{most:g} s' if most else '-'}"
        assert by_title["its timeout: base, for 1,024 tokens, at most"][version] == shown
        (title,) = (each for each in by_title if each.startswith("prefetch stops"))
        assert by_title[title][version] == f"`{stop}`"
        part = RULES["prefetch limit"].options["prefetch.limit_fraction"][version]
        assert by_title["prefetches are declined from"][version].startswith(f"{part} of ")
        layout = RULES["layout"].options["machine.host_layout"][version]
        (title,) = (each for each in by_title if each.startswith("host layout"))
        assert by_title[title][version] == f"`{layout}`"


@pytest.mark.parametrize("question", range(5))
def test_what_the_script_asks_is_understood(question: int) -> None:
    module = _module()
    asked = module.QUESTIONS[question]
    for value in module.answered(asked):
        for trace in module.TRACES:
            words = shlex.split(module.command(trace, asked, value))
            assert read_server_args(words[-1]).options
            assert ("--l3" in words) == asked.storage


def test_the_script_s_part_goes_in_once() -> None:
    module = _module()
    once = module.filled(TEXT, "first")
    again = module.filled(once, "second")
    assert "first" in once
    assert again == once.replace("first\n<!-- end", "second\n<!-- end")
    assert again.count(module.HEADING) == 1
