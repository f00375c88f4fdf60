"""The device without a model: time as given, and pages that give every wrong transfer away."""

from __future__ import annotations

import pytest

import hw  # noqa: F401  # before Triton is imported

pytest.importorskip("torch")

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache.errors import DeviceError, InputError
from hicache.operations import Chunk, Copy, Decode, Prefill
from hw.device import Control, Step
from hw.pools import DevicePool, KvLayout
from hw.synthetic import AffineDurations, SyntheticDevice, check, fill, launch, token_seeds

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
AT_ONCE = AffineDurations(0, 0, 0, 0)


def layout(**changes) -> KvLayout:
    sizes = {
        "layers": 2, "kv_heads": 2, "head_dim_k": 8, "head_dim_v": 8, "page_size_tokens": 4,
        "dtype": "bf16",
    }  # fmt: skip
    return KvLayout(**(sizes | changes))


LAYOUTS = [
    layout(),
    layout(head_dim_k=24, head_dim_v=16, dtype="fp16", page_size_tokens=1),
    layout(kv_heads=1, head_dim_k=144, head_dim_v=0, dtype="fp8", page_size_tokens=16),
    layout(kv_heads=1, head_dim_k=5, head_dim_v=3, dtype="fp8", page_size_tokens=3),
    layout(head_dim_k=3, head_dim_v=5, dtype="bf16", page_size_tokens=2),
    layout(dtype="fp32", layers=1),
]


class Bench:
    """A synthetic device and requests in random pages."""

    def __init__(self, shape: KvLayout, pages: int = 40, durations=AT_ONCE) -> None:
        self.pool = DevicePool(shape, pages, DEVICE)
        self.device = SyntheticDevice(self.pool, durations)
        self.order = np.random.default_rng(0).permutation(pages).tolist()
        self.tokens = np.random.default_rng(1).integers(0, 1000, 200, dtype=np.int32)

    def step(self, past: int, new: int, request: int = 0) -> Step:
        return Step(request, new, past, self.tokens, tuple((page, 1) for page in self.order))

    def prefill(self, past: int, new: int):
        operation = Prefill((Chunk(0, new, past),), new)
        return self.device.run(operation, Control(), (self.step(past, new),))

    def decode(self, past: int, steps: int, control: Control | None = None):
        operation = Decode(1, past, steps, (0,))
        return self.device.run(operation, control or Control(), (self.step(past, 1),))


@pytest.mark.parametrize("shape", LAYOUTS)
def test_what_was_computed_is_found_again(shape):
    bench = Bench(shape)
    bench.prefill(0, 13)
    bench.prefill(13, 4)
    assert bench.decode(17, 3).steps == 3
    bench.prefill(20, 1)
    assert bench.device.filled_tokens == 21
    assert bench.device.checked_tokens == 13 + 17 + 20


@given(
    shape=st.sampled_from(LAYOUTS),
    tokens=st.integers(1, 30),
    place=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
)
@settings(deadline=None, max_examples=15)
def test_every_bit_of_a_token_counts_and_no_other(shape, tokens, place, bit):
    pool = DevicePool(shape, 32, DEVICE)
    slots = np.random.default_rng(tokens).permutation(32 * shape.page_size_tokens)[:tokens]
    seeds, slots = token_seeds(np.arange(tokens), tokens), slots.astype(np.int32)
    fill(pool, seeds, slots)
    assert not check(pool, seeds, slots).any()
    assert not launch(pool, seeds, slots, "check").any()
    at = int(place * len(pool.data))
    pool.data[at] ^= 1 << bit
    # Which token's byte is it, if any's?
    part = int(at >= pool.v_start_bytes)
    size = shape.piece_bytes(part) // shape.page_size_tokens
    owner = (at - part * pool.v_start_bytes) // size % (32 * shape.page_size_tokens)
    expected = (slots == owner).astype(int).tolist()
    assert check(pool, seeds, slots).tolist() == expected
    assert launch(pool, seeds, slots, "check").tolist() == expected


@given(shape=st.sampled_from(LAYOUTS), tokens=st.integers(0, 90), damage=st.integers(0, 60))
@settings(deadline=None, max_examples=15)
def test_the_kernel_and_the_cpu_write_and_count_the_same_words(shape, tokens, damage):
    rng = np.random.default_rng(tokens)
    slots = rng.permutation(96 * shape.page_size_tokens)[:tokens].astype(np.int32)
    seeds = token_seeds(rng.integers(0, 1000, tokens), tokens)
    pools = [DevicePool(shape, 96, where) for where in (DEVICE, "cpu")]
    for pool in pools:
        pool.data.fill_(0x5A)
    launch(pools[0], seeds, slots, "fill")
    fill(pools[1], seeds, slots)
    assert torch.equal(pools[0].data.cpu(), pools[1].data)
    for at in rng.integers(0, len(pools[1].data), damage).tolist():
        for pool in pools:
            pool.data[at] ^= 1 + at % 255
    counted = launch(pools[0], seeds, slots, "check")
    assert counted.tolist() == check(pools[1], seeds, slots).tolist()


def test_more_tokens_than_are_looked_at_at_once():
    shape = layout(page_size_tokens=16)
    pool = DevicePool(shape, 300, DEVICE)
    seeds, slots = token_seeds(np.arange(4800), 4800), np.arange(4800, dtype=np.int32)[::-1].copy()
    fill(pool, seeds, slots)
    assert not launch(pool, seeds, slots, "check").any()
    pool.data[-1] ^= 1
    assert check(pool, seeds, slots).nonzero().tolist() == [[0]]


def test_filling_leaves_other_slots_alone():
    shape = layout()
    pool = DevicePool(shape, 8, DEVICE)
    pool.data.fill_(0x5A)
    fill(pool, token_seeds(np.arange(3), 3), np.array([5, 9, 2], np.int32))
    k = pool.k.view(torch.int16).flatten(1, 2)
    untouched = [slot for slot in range(32) if slot not in (5, 9, 2)]
    assert (k[:, untouched] == 0x5A5A).all()
    assert not (k[:, [2, 5, 9]] == 0x5A5A).all()


class TestSees:
    """What a wrong transfer does to a page."""

    def wrong(self, bench: Bench) -> str:
        with pytest.raises(DeviceError) as error:
            bench.prefill(16, 1)
        return str(error.value)

    def filled(self) -> tuple[Bench, torch.Tensor, torch.Tensor]:
        bench = Bench(layout())
        bench.prefill(0, 16)
        assert bench.pool.v is not None
        return bench, bench.pool.k, bench.pool.v

    def test_two_pages_that_changed_places(self):
        bench, k, v = self.filled()
        one, two = bench.order[1:3]
        for each in (k, v):
            each[:, [one, two]] = each[:, [two, one]]
        message = self.wrong(bench)
        assert message.startswith(bench.device.name)
        assert "8 of 16 tokens read are not what their requests computed" in message
        assert f"position 4 of request 0, in L1 page {one}, " in message

    def test_one_layer_that_did_not_arrive(self):
        bench, _, v = self.filled()
        v[1, bench.order[3]] = 0
        assert "position 12 of request 0" in self.wrong(bench)

    def test_k_in_the_place_of_v(self):
        bench, k, v = self.filled()
        v[0, bench.order[0]] = k[0, bench.order[0]]
        assert "4 of 16 tokens" in self.wrong(bench)

    def test_a_layer_in_the_place_of_another(self):
        bench, k, _ = self.filled()
        k[1, bench.order[2]] = k[0, bench.order[2]]
        assert "position 8 of request 0" in self.wrong(bench)

    def test_the_same_tokens_behind_another_prefix(self):
        bench, _, _ = self.filled()
        bench.tokens = bench.tokens.copy()
        bench.tokens[0] += 1
        assert "16 of 16 tokens" in self.wrong(bench)

    def test_a_burst_checks_its_requests_too(self):
        bench, k, _ = self.filled()
        k.view(torch.int16)[0, bench.order[2], 1, 0, 3] ^= 4
        with pytest.raises(DeviceError, match=r"1 of 16 tokens .* position 9 .* 1 words wrong"):
            bench.decode(16, 2)


class TestTime:
    """Steps take the time that is given."""

    def test_a_prefill(self):
        durations = AffineDurations(200_000_000, 10_000_000, 0, 0)
        timing = Bench(layout(), durations=durations).prefill(0, 10)
        took_ns = timing.finished_ns - timing.started_ns
        assert 300_000_000 <= took_ns <= 1_500_000_000

    def test_the_steps_of_a_burst(self):
        durations = AffineDurations(0, 0, 200_000_000, 10_000_000)
        bench = Bench(layout(), durations=durations)
        bench.device.warm_up()
        bench.prefill(0, 8)
        timing = bench.decode(8, 2)
        first, second = timing.step_ends_ns
        assert first - timing.started_ns >= 279_000_000
        assert second - first >= 289_000_000
        assert timing.finished_ns >= second

    def test_a_burst_that_is_asked_to_end(self):
        bench = Bench(layout())
        bench.prefill(0, 8)
        control = Control()
        control.end()
        assert bench.decode(8, 5, control).steps == 1


class TestRefuses:
    """Errors that say what is wrong."""

    def test_pages_that_do_not_hold_the_tokens(self):
        bench = Bench(layout())
        bench.order = bench.order[:2]
        with pytest.raises(InputError, match="2 pages of 4 tokens do not hold 9"):
            bench.prefill(0, 9)

    def test_too_few_tokens(self):
        bench = Bench(layout())
        bench.tokens = bench.tokens[:5]
        with pytest.raises(InputError, match="5 tokens where 6 are needed"):
            bench.prefill(0, 6)

    def test_copies(self):
        with pytest.raises(InputError, match="does not carry out"):
            Bench(layout()).device.run(Copy("h2d", 1, 1, 1), Control())


def test_seeds_depend_on_every_token_before():
    tokens = np.arange(50)
    seeds = token_seeds(tokens, 50)
    assert np.array_equal(token_seeds(tokens, 20), seeds[:20])
    assert len(set(seeds.tolist())) == 50
    tokens[10] = 7
    other = token_seeds(tokens, 50)
    assert np.array_equal(other[:10], seeds[:10])
    assert not (other[10:] == seeds[10:]).any()
