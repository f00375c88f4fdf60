"""Times of tensor-parallel ranks: their steps, their copies, and L3 that they share."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from by_hand import H200_BY_HAND
from lanes_contract import Watched
from simpy import Environment

from hicache.errors import InputError
from hicache.operations import Chunk, Copy, Direction, Operation, Prefill
from scenario.geometry import load_geometry
from scenario.load import load_scenario
from scenario.profile import Profile, Quantity, load_profile
from scenario.ranks import RankOptions, rank_geometry
from scenario.stores import STORES
from sim.lanes import SimMachine
from sim.replay import replay
from sim.scaling import scaled
from sim.step_model import step_model
from sim.tensor_parallel import ALL_REDUCE_NS, LINK_BYTES_PER_S, all_reduce_ns, of_ranks

REPOSITORY = Path(__file__).resolve().parents[2]
QWEN = load_geometry("Qwen3-8B")
MIB = 1 << 20


def profile() -> Profile:
    return load_profile(H200_BY_HAND)


def step(tokens: int) -> Prefill:
    return Prefill((Chunk(0, tokens, 0),), tokens)


# ---------------------------------------------------------------------- steps


def test_a_step_is_that_of_a_part_and_its_all_reduces() -> None:
    gpu = profile().gpu
    part, _ = scaled(gpu, rank_geometry(QWEN, RankOptions(4)))
    ranks, said = of_ranks(gpu, QWEN, 4)
    for tokens in (64, 1024, 8192):
        alone, together = (step_model(each).prefill_ns(step(tokens)) for each in (part, ranks))
        # Samples that fall are made monotone, which adds less where something was added.
        assert together - alone == pytest.approx(all_reduce_ns(QWEN, 4, tokens), rel=0.01)
    assert [each.key for each in said] == ["gpu.ranks"]
    assert "4 ranks of Qwen3-8B" in said[0].how
    assert "would replace it" in said[0].how


def test_all_reduces_by_hand() -> None:
    """Two a layer; 100 tokens of 4096 * 2 bytes, of which 4 ranks send 6 / 4 each."""
    one = ALL_REDUCE_NS + 100 * 8192 * 1.5 / LINK_BYTES_PER_S * 1e9
    assert all_reduce_ns(QWEN, 4, 100) == pytest.approx(72 * one)


@pytest.mark.parametrize("tokens", [16, 512, 8192])
def test_more_ranks_are_faster_but_less_than_so_many_times(tokens: int) -> None:
    gpu = profile().gpu
    took = [step_model(of_ranks(gpu, QWEN, tp)[0]).prefill_ns(step(tokens)) for tp in (1, 2, 4, 8)]
    for one, next_one in pairwise(took):
        assert one / 2 < next_one < one


def test_one_rank_is_as_before() -> None:
    gpu = profile().gpu
    assert of_ranks(gpu, QWEN, 1) == scaled(gpu, QWEN)


def test_steps_that_were_sampled_on_ranks_are_taken_as_they_are() -> None:
    sampled = Quantity(value=4, provenance="measured", how="by hand")
    gpu = msgspec.structs.replace(profile().gpu, ranks=sampled)
    assert of_ranks(gpu, QWEN, 4) == (gpu, ())
    with pytest.raises(InputError, match=r"ranks\.tp is 2: .* one of 4 ranks .*; allowed: 4"):
        of_ranks(gpu, QWEN, 2)
    with pytest.raises(InputError, match=r"ranks\.tp is 1"):
        of_ranks(gpu, QWEN, 1)


# ---------------------------------------------------------------------- copies


def took_ns(operation: Operation, ranks: int, writing: int, store: str = "") -> int:
    env = Environment(0)
    machine = SimMachine(
        env, profile(), QWEN, ranks=ranks, writing_ranks=writing,
        store=STORES[store] if store else None,
    )  # fmt: skip
    watched = Watched(env, machine.lanes().submit(operation))
    env.run()
    return watched.done.finished_ns - watched.done.started_ns


@pytest.mark.parametrize("direction", ["s2h", "h2s"])
def test_all_ranks_share_the_disk(direction: Direction) -> None:
    one = took_ns(Copy(direction, 64, 64 * MIB, 1), 1, 1)
    four = took_ns(Copy(direction, 64, 64 * MIB, 1), 4, 4)
    whole = took_ns(Copy(direction, 64, 256 * MIB, 4), 1, 1)
    assert four > one
    # A disk may gain from several operations at once, and no more than that.
    assert 0.5 * whole < four <= 1.05 * whole


def test_what_all_hold_alike_is_written_once_and_read_by_each() -> None:
    for direction, times in (("h2s", 1), ("s2h", 4)):
        alone = took_ns(Copy(direction, 64, 640 * MIB, 1), 1, 1, "nixl")  # type: ignore[arg-type]
        ranks = took_ns(Copy(direction, 64, 640 * MIB, 1), 4, 1, "nixl")  # type: ignore[arg-type]
        assert ranks == pytest.approx(times * alone, rel=0.1), direction


def test_each_rank_has_a_link_of_its_own() -> None:
    copy = Copy("h2d", 64, 640 * MIB, 1)
    assert took_ns(copy, 8, 8) == took_ns(copy, 1, 1)


def test_named_slots_are_new_once_on_every_rank() -> None:
    """A slot that was never written takes longer; of ranks each has its own."""
    env = Environment(0)
    first = Quantity(value=500, provenance="measured", how="by hand")
    known = profile()
    known = msgspec.structs.replace(
        known, disk=msgspec.structs.replace(known.disk, first_write_permille=first)
    )
    lanes = SimMachine(env, known, QWEN, ranks=4, writing_ranks=4).lanes()
    took: list[int] = []
    for target in (((0, 64),), ((0, 64),), ((32, 64),), ((32, 64),)):
        watched = Watched(env, lanes.submit(Copy("h2s", 64, 64 * MIB, 1, ((0, 64),), target)))
        env.run()
        took.append(watched.done.finished_ns - watched.done.started_ns)
    new, old, half, again = took
    assert old == again < half < new


# ---------------------------------------------------------------------- a replay


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lines = (REPOSITORY / "data" / "agents.jsonl").read_text().splitlines()[:60]
    path = tmp_path_factory.mktemp("trace") / "some.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def summary(trace: Path, **options: object) -> dict[str, Any]:
    given = {key.replace("__", "."): value for key, value in options.items()}
    sized = {"tiers.l1": "400pages", "tiers.l2": "900pages", "tiers.l3": "9000pages"}
    return dict(replay(load_scenario(None, {"trace.path": str(trace), **sized, **given})).summary)


@pytest.mark.parametrize("preset", ["mini-hicache", "sglang-0.5.20"])
def test_a_replay_of_ranks_says_what_a_rank_and_a_node_have(trace: Path, preset: str) -> None:
    one, four = summary(trace, preset=preset), summary(trace, preset=preset, ranks__tp=4)
    assert "ranks" not in one
    sizes, page = four["ranks"], four["bytes_per_token"] * 64
    assert four["bytes_per_token"] * 4 == one["bytes_per_token"]
    assert (sizes["tp"], sizes["writing_l3"]) == (4, 4)
    for tier, pages in (("device", 400), ("storage", 9000)):
        assert sizes[f"{tier}_per_rank_bytes"] == pages * page
        assert sizes[f"{tier}_per_node_bytes"] == 4 * pages * page
    assert four["ttft_ms"]["p50"] < one["ttft_ms"]["p50"]
    assert any(each["key"] == "gpu.ranks" for each in four["estimates"])
    assert four["transfers"]["h2s"]["pages"] > 0


def test_the_same_scenario_gives_the_same_bytes(trace: Path) -> None:
    given = {"preset": "sglang-0.5.20", "ranks__tp": 2, "ranks__tp_lcm_size": 8}
    assert summary(trace, **given) == summary(trace, **given)


def test_objects_of_head_shards_take_their_time(trace: Path) -> None:
    given = {"preset": "sglang-0.5.20", "ranks__tp": 2, "machine__store": "mooncake"}
    whole, cut = summary(trace, **given), summary(trace, **given, ranks__tp_lcm_size=8)
    assert cut["bytes"]["h2s"] == pytest.approx(whole["bytes"]["h2s"], rel=0.05)
    for way in ("s2h", "h2s"):
        assert cut["transfers"][way]["service_s"] > whole["transfers"][way]["service_s"]
