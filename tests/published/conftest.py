"""Lets the tests of this folder import the scripts of `scenarios/`, and makes all runs once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


@pytest.fixture(scope="session")
def results():
    from scenarios.reproduce import results as make_all

    return make_all()


@pytest.fixture(scope="session")
def throughputs(results):
    """Throughput by (group, variant)."""
    return {(each.group, each.variant): each for each in results.throughputs}


@pytest.fixture(scope="session")
def latencies(results):
    """Latency by (group, tokens)."""
    return {(each.group, each.tokens): each for each in results.latencies}
