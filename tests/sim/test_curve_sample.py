"""Sampled curves: samples of pages that are traces of their own, and errors that hold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from curve_cases import Listed, exact, examples
from hypothesis import given
from hypothesis import strategies as st

from hicache.errors import InputError
from sim.curve_sample import MOST_CORNERS, PARTS, Sample
from sim.curve_trace import CurveRules, ExactReuse, read_uses
from traces.convert import write
from traces.generator import AgentOptions
from traces.reader import open_trace
from traces.workloads import WORKLOADS

AGENTS = AgentOptions(hours=0.1, sessions_per_hour=2000, longest_prompt_tokens=16000)


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sample") / "agents.jsonl"
    write(WORKLOADS["agents"].generate(AGENTS), path)
    return path


@given(st.integers(2, 50), st.integers(0, 5))
@examples(50)
def test_one_key_of_every_stretch_is_drawn(width: int, seed: int) -> None:
    sample = Sample(1 / width, seed)
    counts = [sample.before(key) for key in range(10 * width + 1)]
    drawn = [key for key in range(10 * width) if counts[key + 1] > counts[key]]
    assert [key // width for key in drawn] == list(range(10))
    assert counts[0] == 0
    assert counts[-1] == 10


@given(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=30), min_size=1, max_size=12),
    st.integers(2, 4),
)
@examples(60)
def test_a_sample_is_the_trace_of_its_pages(prompts: list[list[int]], width: int) -> None:
    """Its hits are those of the sampled pages, one by one, in a cache without bounds."""
    sample = Sample(1 / width, 1)
    keys: set[int] = set()
    hits = asked = 0
    for request in Listed(prompts).requests():
        mine = [key for first, count in request.prompt_runs for key in range(first, first + count)]
        sampled = [key for key in mine if sample.before(key + 1) > sample.before(key)]
        may_hit = request.prompt_pages - 1
        lookable = [key for key in sampled if key in mine[:may_hit]]
        asked += len(lookable)
        hits += sum(key in keys for key in lookable)
        keys.update(sampled)
        sample.take(request.prompt_runs, may_hit)
    whole, parts = sample._whole, sample._parts
    assert (whole.reuse.hits, whole.asked) == (hits, asked)
    # Each sampled page is in one part.
    assert len(parts) == PARTS
    assert sum(part.reuse.hits for part in parts) == hits
    assert sum(part.asked for part in parts) == asked


def errors(path: Path, rate: float, seeds: range) -> Iterator[tuple[float, float]]:
    """For each seed: the worst error and the worst standard error, in parts of all pages."""
    taker = ExactReuse()
    samples = [Sample(rate, seed) for seed in seeds]
    uses = read_uses(open_trace(path), CurveRules(16), [taker, *samples])
    _, _, curve = exact(open_trace(path), 16)
    asked = sum(uses.prompt_pages)
    for sample in samples:
        found = sample.curve(uses)
        worst = max(
            abs(hits - curve.pages_at(capacity))
            for capacity, hits in zip(
                found.curve.capacity_pages, found.curve.hit_pages, strict=True
            )
        )
        assert len(found.curve.capacity_pages) <= MOST_CORNERS + 3
        assert found.curve.hit_pages == sorted(found.curve.hit_pages)
        assert len(found.standard_error_pages) == len(found.curve.capacity_pages)
        yield worst / asked, max(found.standard_error_pages) / asked


def test_estimates_are_near_and_their_errors_say_how_near(agents: Path) -> None:
    coarse = list(errors(agents, 0.02, range(4)))
    fine = list(errors(agents, 0.2, range(4)))
    for worst, error in coarse + fine:
        assert worst <= 4 * error, "no estimate is far outside what it says of itself"
    assert max(worst for worst, _ in fine) < 0.02
    assert sum(error for _, error in fine) < sum(error for _, error in coarse)


def test_the_same_seed_is_the_same_estimate_and_another_another(agents: Path) -> None:
    def estimate(seed: int) -> tuple[list[int], list[int]]:
        sample = Sample(0.1, seed)
        uses = read_uses(open_trace(agents), CurveRules(64), [sample])
        found = sample.curve(uses)
        return list(found.curve.hit_pages), found.standard_error_pages

    assert estimate(0) == estimate(0) != estimate(1)


@pytest.mark.parametrize("rate", [0, -0.1, 0.6, 1, float("nan")])
def test_rates_that_cannot_be(rate: float) -> None:
    with pytest.raises(InputError, match="sample is"):
        Sample(rate)
