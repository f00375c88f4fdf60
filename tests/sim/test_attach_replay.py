"""L3 attached and detached in whole replays: what it changes, and what is said of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hicache.errors import InputError
from scenario.load import load_scenario
from sim.replay import replay

GAP_S = 20


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six prompts in turn, 20 s apart, four times; L1 holds one, L2 three."""
    path = tmp_path_factory.mktemp("trace") / "turns.jsonl"
    rows = [
        {
            "timestamp": 1000 * GAP_S * place, "input_length": 4096, "output_length": 10,
            "hash_ids": [100 * (place % 6) + block for block in range(8)],
        }
        for place in range(24)
    ]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def summary_with(trace: Path, **changed: Any) -> dict[str, Any]:
    options = {
        "preset": "sglang-0.5.20", "trace.path": str(trace), "tiers.l1": "80pages",
        "tiers.l2": "200pages", "tiers.l3": "5000pages", "prefetch.stop": "wait_complete",
        "engine.check_every_steps": 1,
    }  # fmt: skip
    options |= {key.replace("__", "."): value for key, value in changed.items()}
    summary: dict[str, Any] = dict(replay(load_scenario(None, options)).summary)
    cached = sum(summary["cached_tokens_total"].values())
    assert cached + summary["computed_tokens"] == summary["prompt_tokens"]
    return summary


def test_hits_in_l3_go_and_come_with_it(trace: Path) -> None:
    hits = {}
    for attach_s, detach_s in ((0, 0), (0, 170), (250, 170), (100, 0)):
        summary = summary_with(trace, storage__attach_s=attach_s, storage__detach_s=detach_s)
        hits[attach_s, detach_s] = summary["cached_tokens_total"]["storage"] // 4032
        switches = summary.get("storage_switches")
        if attach_s or detach_s:
            assert switches == {"attached": int(attach_s > 0), "detached": int(detach_s > 0)}
        else:
            assert switches is None
    assert hits[0, 0] == 18
    assert hits[0, 170] == 3  # of the second round; from 180 s on it is not there
    assert hits[250, 170] == 3 + 11  # from 260 s on it is there again, with what it held
    assert hits[100, 0] == 1 + 6 + 6  # what came before it was there had not been written


def test_what_never_comes_about_is_said(trace: Path) -> None:
    warnings = summary_with(trace, storage__detach_s=1000)["warnings"]
    (said,) = (each for each in warnings if each.startswith("store_switch"))
    assert "storage.detach_s is 1000" in said
    assert not [w for w in summary_with(trace, storage__detach_s=100)["warnings"] if "_switch" in w]


def test_each_of_several_servers_has_its_own_moment(trace: Path) -> None:
    summary = summary_with(trace, storage__detach_s=170, instances=2)
    assert summary["storage_switches"] == {"attached": 0, "detached": 2}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"tiers__l3": "0"}, "tiers.l3 is 0"),
        ({"mode": "untimed"}, "mode is untimed"),
        ({"storage__index": "tree", "prefetch__mode": "restore"}, "storage.index is tree"),
    ],
)
def test_where_it_cannot_change_anything_it_is_said(
    trace: Path, changed: dict[str, Any], why: str
) -> None:
    warnings = " ".join(summary_with(trace, storage__detach_s=5, **changed)["warnings"])
    assert f"storage.detach_s is 5.0 but has no effect: {why}" in warnings


def test_two_at_one_time_are_refused() -> None:
    given = {"storage.attach_s": 3.0, "storage.detach_s": 3.0}
    with pytest.raises(InputError, match=r"storage\.attach_s is 3\.0 and storage\.detach_s, too"):
        load_scenario(None, given)
