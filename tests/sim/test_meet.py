"""What restores that meet a recompute, and policies that know what is in front of a request, are
worth on simulated machines.
"""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest
from slow_links import slower

from hicache.operations import Copy, Prefill
from hicache.record import Record
from scenario.load import load_scenario
from sim.replay import Outcome, replay

REPOSITORY = Path(__file__).resolve().parents[2]
LAYERWISE = {"restore.layerwise": True}
AWARE = {"restore.queue_aware": True}


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first agents of the shipped trace."""
    path = tmp_path_factory.mktemp("trace") / "agents.jsonl"
    with (REPOSITORY / "data" / "agents.jsonl").open() as rows:
        path.write_text("".join(islice(rows, 300)))
    return path


def served(
    trace: Path, policy: str, link: float = 1, disk: float = 1, *, speed: float = 0.3, **options
) -> Outcome:
    """`trace` at a part of its pace, which leaves time between most requests."""
    given = {name.replace("__", "."): value for name, value in options.items()}
    scenario = load_scenario(
        None,
        {
            "trace.path": str(trace), "trace.speed": speed, "restore.policy": policy,
            "tiers.l1": "6GiB", "tiers.l2": "4x", "engine.check_every_steps": 50, **given,
        },
    )  # fmt: skip
    return replay(scenario, profile=slower(link, disk))


def ttft_ms(outcome: Outcome) -> float:
    return outcome.summary["ttft_ms"]["mean"]  # type: ignore[index, return-value]


def reasons(outcome: Outcome) -> list[str]:
    return list(outcome.columns["reason"])


@pytest.mark.parametrize("link", [8, 12, 20])
def test_on_a_slow_link_the_middle_beats_both_ends(trace: Path, link: int) -> None:
    meet = served(trace, "meet", link, **LAYERWISE)
    others = [
        served(trace, policy, link, **options)
        for policy in ("cost", "always", "never")
        for options in ({}, LAYERWISE)
    ]
    assert ttft_ms(meet) < {8: 0.98, 12: 0.9, 20: 0.9}[link] * min(map(ttft_ms, others))
    assert reasons(meet).count("meet") > 50
    host = sum(meet.columns["host_tokens"])
    assert 0 < host < sum(others[3].columns["host_tokens"])  # always, layer-wise


def test_on_a_fast_link_it_is_as_good_as_loading_all(trace: Path) -> None:
    meet = ttft_ms(served(trace, "meet", **LAYERWISE))
    assert meet < 0.85 * ttft_ms(served(trace, "never"))
    assert meet < 1.005 * ttft_ms(served(trace, "always", **LAYERWISE))
    assert meet < 1.005 * ttft_ms(served(trace, "cost", **LAYERWISE))


def test_of_a_disk_it_reads_what_pays(trace: Path) -> None:
    """A token takes 6 us to read, 32 to load and some 35 to compute."""
    tiers = {"tiers__l1": "4GiB", "tiers__l2": "1.5x", "tiers__l3": "40x"}
    made = {
        policy: served(trace, policy, 12, 1 / 16, **tiers, **LAYERWISE)
        for policy in ("meet", "cost", "always", "never")
    }
    others = min(ttft_ms(made[policy]) for policy in ("cost", "always", "never"))
    assert ttft_ms(made["meet"]) < 0.9 * others
    read = sum(made["meet"].columns["storage_tokens"])
    assert 0 < read < sum(made["always"].columns["storage_tokens"])


@pytest.fixture(scope="module")
def burst(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve prompts of 8,192 tokens, twelve others that push them out of L1, and the first twelve
    again, all of them at once.
    """
    path = tmp_path_factory.mktemp("trace") / "burst.jsonl"
    rows = [
        {
            "timestamp": 2000 * min(number, 30),
            "input_length": 8192,
            "output_length": 4,
            "hash_ids": list(range(100 * (number % 24), 100 * (number % 24) + 16)),
        }
        for number in range(36)
    ]
    for row in rows[24:]:
        row["timestamp"] = 60_000
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


ROOMY = {"speed": 1, "tiers__l1": "16GiB", "tiers__l2": "4x"}


@pytest.mark.parametrize(
    ("link", "plain"), [(11, "cost"), (20, "recompute_cheaper")], ids=["fast link", "slow link"]
)
def test_of_a_burst_some_are_loaded_while_others_are_computed(
    burst: Path, link: int, plain: str
) -> None:
    """Alone each would be loaded (or computed): all at once they would wait for one another."""
    without = served(burst, "cost", link, **ROOMY)
    assert set(reasons(without)[24:]) == {plain}
    for policy in ("cost", "meet"):
        aware = served(burst, policy, link, **ROOMY, **AWARE)
        assert 3 < reasons(aware)[24:].count("recompute_cheaper") < 9
        saved = sum(without.columns["ttft_ns"][24:]) - sum(aware.columns["ttft_ns"][24:])
        assert saved > 0.15 * sum(without.columns["ttft_ns"][24:])


def test_loads_that_begin_with_their_step_do_not_wait_for_each_other(burst: Path) -> None:
    options = {"restore.start": "prefill", **LAYERWISE, **ROOMY}
    without, aware = (served(burst, "cost", 11, **options, **more) for more in ({}, AWARE))
    assert reasons(without) == reasons(aware)
    meet = served(burst, "meet", 11, **options)
    assert ttft_ms(meet) < 0.8 * ttft_ms(without)


@pytest.mark.parametrize("start", ["admission", "prefill"])
def test_a_record_of_it_replays(trace: Path, start: str) -> None:
    scenario = load_scenario(
        None,
        {
            "trace.path": str(trace), "tiers.l1": "6GiB", "tiers.l2": "1.5x", "tiers.l3": "20x",
            "engine.page_ids": "named", "restore.policy": "meet", "restore.start": start,
            "restore.layerwise": True, "restore.queue_aware": True,
        },
    )  # fmt: skip
    first = replay(scenario, record=True, profile=slower(12, 1 / 16))
    assert reasons(first).count("meet") > 50
    record = Record(first.extras["completions.jsonl"].splitlines())
    operations = [entry[2] for entry in record.endings.values()]
    assert any(isinstance(each, Prefill) and each.load >= 0 for each in operations)
    assert any(isinstance(each, Copy) and each.direction == "s2h" for each in operations)
    second = replay(scenario, replay_of=record)
    assert {name: list(column) for name, column in second.columns.items()} == {
        name: list(column) for name, column in first.columns.items()
    }
