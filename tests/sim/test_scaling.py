"""Models that nobody sampled: scaled by bytes and FLOPs, and said to be."""

from __future__ import annotations

import pytest
from by_hand import H200_BY_HAND
from simpy import Environment

from hicache.operations import Chunk, Prefill
from scenario.geometry import load_geometry, model_names
from scenario.profile import load_profile
from sim.lanes import SimMachine
from sim.scaling import scaled, weight_bytes_read

PROFILE = load_profile(H200_BY_HAND)


def machine(model: str | None, kv_dtype: str = "auto") -> SimMachine:
    geometry = None if model is None else load_geometry(model, kv_dtype)
    return SimMachine(Environment(0), PROFILE, geometry)


def prefill_ns(model: str | None, new: int, past: int = 0) -> int:
    return machine(model).steps.prefill_ns(Prefill((Chunk(0, new, past),), new))


def decode_ns(model: str | None, batch: int, context: int, kv_dtype: str = "auto") -> int:
    return machine(model, kv_dtype).steps.decode_ns(batch, batch * context)


def test_the_sampled_model_stays_as_it_was_sampled():
    assert scaled(PROFILE.gpu, load_geometry("Qwen3-8B")) == (PROFILE.gpu, ())
    assert machine("Qwen3-8B").estimates() == machine(None).estimates() == PROFILE.estimates()
    assert prefill_ns("Qwen3-8B", 5000, 777) == prefill_ns(None, 5000, 777)


@pytest.mark.parametrize("model", [name for name in model_names() if name != "Qwen3-8B"])
def test_every_other_model_is_an_estimate_and_says_so(model):
    (estimate,) = set(machine(model).estimates()) - set(PROFILE.estimates())
    assert estimate.key == "gpu"
    assert model in estimate.how
    assert prefill_ns(model, 512) < prefill_ns(model, 8192)
    assert decode_ns(model, 4, 1024) < decode_ns(model, 4, 65_536)


def test_a_long_prefill_grows_with_the_flops_and_a_decode_step_with_the_weights():
    small, large = load_geometry("Qwen3-8B"), load_geometry("Llama-3.1-70B")
    flops = large.dense_flops_per_token / small.dense_flops_per_token
    assert prefill_ns(large.name, 8192) == pytest.approx(flops * prefill_ns(None, 8192), rel=0.1)
    weights = large.weight_bytes / small.weight_bytes
    assert decode_ns(large.name, 1, 1024) == pytest.approx(
        weights * decode_ns(None, 1, 1024), rel=0.2
    )


def test_a_mixture_of_experts_reads_what_its_tokens_choose():
    model = load_geometry("Qwen3-30B-A3B")
    active = model.weight_bytes * model.active_parameter_count / model.parameter_count
    assert weight_bytes_read(model, 1) == pytest.approx(active)
    assert weight_bytes_read(model, 10_000) == pytest.approx(model.weight_bytes)
    dense = load_geometry("Qwen3-14B")
    assert weight_bytes_read(dense, 1) == weight_bytes_read(dense, 9) == dense.weight_bytes
    # Three billion active parameters decode faster than eight, and prefill faster too.
    assert decode_ns(model.name, 1, 1024) < decode_ns(None, 1, 1024)
    assert prefill_ns(model.name, 8192) < prefill_ns(None, 8192)


def test_a_smaller_kv_cache_makes_long_contexts_cheaper_to_decode():
    half = decode_ns("Qwen3-8B", 16, 65_536, "fp8")
    assert half < 0.7 * decode_ns("Qwen3-8B", 16, 65_536)
    assert decode_ns("Qwen3-8B", 1, 1, "fp8") == pytest.approx(decode_ns(None, 1, 1), rel=0.02)


def test_a_recompute_curve_is_scaled_too():
    profile = load_profile("mini-group-b")
    steps = SimMachine(Environment(0), profile, load_geometry("Qwen3-8B")).steps
    own = SimMachine(Environment(0), profile).steps
    step = Prefill((Chunk(0, 3500, 0),), 3500)
    assert 1.8 < steps.prefill_ns(step) / own.prefill_ns(step) < 2.2
