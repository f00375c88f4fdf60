"""A small trace on which every tier is used, made once for all tests of the command."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_helpers import SMALL_TIERS

from traces.generator import AgentOptions, write_trace


@pytest.fixture(scope="session")
def small_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few hundred requests of agents with short prompts."""
    path = tmp_path_factory.mktemp("trace") / "small.jsonl"
    options = AgentOptions(
        hours=0.05,
        turns_mean=8,
        sessions_per_hour=3000,
        system_prompt_median_tokens=1000,
        longest_prompt_tokens=8000,
    )
    write_trace(options, path)
    return path


@pytest.fixture
def small_replay(small_trace: Path) -> tuple[str, ...]:
    """The arguments of a replay in which every tier is used."""
    return ("replay", str(small_trace), *SMALL_TIERS, "--quiet")
