"""The model on paged KV cache computes what transformers computes without any cache."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

import hw  # noqa: F401  # before Triton is imported

pytest.importorskip("transformers")

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import DEVICE, VOCAB, Bench, plain_logits, small_tiles, table

from hicache.errors import InputError
from hicache.operations import Copy
from hw.device import Control, Step
from hw.model.buffers import Shape, Sizes, tiles_of
from hw.model.build import config_of, local_model, make_model, random_model, read_config
from hw.model.device import ModelDevice
from hw.model.graphs import Buckets, graph_shape

gpu = pytest.mark.gpu
SMALLEST = table(num_hidden_layers=1, num_key_value_heads=1)


def test_a_prompt_in_chunks_then_a_burst():
    bench = Bench(table(), page_size=4, pages=64)
    request = bench.add(40)
    bench.prefill((request, 0, 13))
    bench.prefill((request, 13, 1))
    bench.prefill((request, 14, 9))
    timing = bench.decode(5, (request, 23))
    assert timing.steps == 5


def test_several_chunks_of_several_requests_with_a_batch_riding_along():
    bench = Bench(table(num_hidden_layers=1), page_size=16, pages=64)
    first, second, third, fourth = (bench.add(60) for _ in range(4))
    bench.prefill((first, 0, 21), (second, 0, 5))
    bench.prefill((second, 5, 20), (third, 0, 17), decoders=((first, 21),))
    bench.prefill((fourth, 0, 3), decoders=((second, 25), (first, 22), (third, 17)))
    bench.decode(2, (first, 23), (third, 18), (fourth, 3), (second, 26))


def test_a_prefix_computed_for_one_request_serves_another():
    bench = Bench(table(), page_size=4, pages=64)
    first = bench.add(30)
    bench.prefill((first, 0, 30))
    second = bench.add(25, like=first, shared_tokens=20)
    bench.prefill((second, 20, 3))
    bench.decode(2, (second, 23))


@given(data=st.data())
@settings(deadline=None, max_examples=3 if DEVICE.type == "cpu" else 15)
def test_any_schedule_page_size_and_order_of_pages(data):
    page_size = data.draw(st.sampled_from((1, 2, 3, 16, 32, 128)), "page size")
    lengths = data.draw(st.lists(st.integers(2, 50), min_size=1, max_size=3), "lengths")
    pages = sum(-(-length // page_size) for length in lengths) + 3
    heads = small_tiles(4, 1, 16, page_size) if data.draw(st.booleans(), "small tiles") else None
    bench = Bench(SMALLEST, page_size, pages, seed=data.draw(st.integers(0, 99)), heads=heads)
    for length in lengths:
        bench.add(length)
    done = [0] * len(lengths)
    for _ in range(3):
        chunks: list[tuple[int, int, int]] = []
        decoders: list[tuple[int, int]] = []
        burst = data.draw(st.integers(1, 3), "burst")
        for request, length in enumerate(lengths):
            past = done[request]
            act = data.draw(st.sampled_from(("chunk", "decode", "wait")), "act")
            if act == "decode" and past and past + burst <= length:
                decoders.append((request, past))
            elif act != "wait" and past < length:
                chunks.append((request, past, data.draw(st.integers(1, length - past), "new")))
        if chunks:
            bench.prefill(*chunks, decoders=tuple(decoders))
            for request, past, new in chunks:
                done[request] = past + new
            for request, past in decoders:
                done[request] = past + 1
        elif decoders:
            bench.decode(burst, *decoders)
            for request, past in decoders:
                done[request] = past + burst


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "llama", "num_attention_heads": 6, "hidden_size": 48, "head_dim": 8},
        {"model_type": "qwen2", "num_attention_heads": 2, "hidden_size": 48, "head_dim": 24},
        {"num_attention_heads": 5, "num_key_value_heads": 1, "tie_word_embeddings": True},
        {"model_type": "mistral", "num_key_value_heads": 4, "sliding_window": None},
    ],
)
def test_families_and_shapes_of_heads(changes):
    bench = Bench(table(**changes), page_size=4, pages=32)
    request = bench.add(30)
    bench.prefill((request, 0, 18))
    bench.prefill((request, 18, 4))
    bench.decode(1, (request, 22))


def test_experts():
    keys = table(
        model_type="qwen3_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
        decoder_sparse_step=1, mlp_only_layers=[],
    )  # fmt: skip
    bench = Bench(keys, page_size=4, pages=32)
    request = bench.add(20)
    bench.prefill((request, 0, 11))
    bench.decode(2, (request, 11))
    assert bench.device.graphs == 0


def test_16_bit_elements_are_as_near_as_they_can_be():
    bench = Bench(table(), page_size=4, pages=32, dtype="bf16")
    request = bench.add(30)
    bench.check = lambda lengths: None
    bench.prefill((request, 0, 20))
    bench.prefill((request, 20, 5))
    exact = plain_logits(bench.model.float(), bench.tokens[request])[24]
    bench.model.bfloat16()
    rounded = bench.expected[request][24]
    ours = bench.device.logits()[0]
    # No further from exact arithmetic than transformers' own attention in the same type, twice.
    assert (ours - exact).abs().max() <= 2 * (rounded - exact).abs().max()


class TestPadding:
    """What a graph's shape has more than the step stands for nothing."""

    def test_a_padded_step_computes_the_same(self, monkeypatch):
        bench = Bench(table(num_hidden_layers=1), page_size=4, pages=64)
        device, used = bench.device, []
        buckets = Buckets((32, 64), (4, 8), 4)

        def fitted(shape, _):
            used.append(graph_shape(shape, device.heads, buckets, Shape(256, 16, 272, 16)))
            return used[-1], False

        monkeypatch.setattr(device, "_fitted", fitted)
        first, second, third = (bench.add(40) for _ in range(3))
        bench.prefill((first, 0, 20), (second, 0, 7))
        before = bench.pool.data.clone()
        bench.prefill((third, 0, 5), (second, 7, 1), decoders=((first, 20),))
        # Only slots of new tokens were written.
        changed = (bench.pool.data != before).view(torch.uint8).reshape(-1, 16 * 4)
        tokens = bench.pool.k.shape[0] * 2 * 2 * 7  # layers, K and V, heads, tokens
        assert 0 < int(changed.any(1).sum()) <= tokens
        bench.decode(3, (third, 5), (first, 21), (second, 8))
        assert used == [
            Shape(32, 4, used[0].tiles, 0),
            Shape(32, 4, used[0].tiles, 4),
            Shape(0, 0, 0, 4),
        ]

    @given(
        sizes=st.lists(st.integers(1, 200), min_size=1, max_size=5),
        decoders=st.integers(0, 20),
        block=st.sampled_from((16, 64)),
    )
    def test_a_graph_has_room_for_every_tile(self, sizes, decoders, block):
        heads = small_tiles(8, 2, 16, 16)
        heads = type(heads)(
            8, 2, 16, 16, 16, 64, heads.prefill._replace(block_m=block), heads.decode
        )
        bench_steps = [_step(new) for new in sizes]
        tiles = tiles_of(bench_steps, heads.tile_tokens)
        assert sorted(tiles) == sorted(set(tiles))
        shape = Shape(sum(sizes), len(sizes), len(tiles), decoders)
        most = Shape(512, 16, 0, 16)
        fitted = graph_shape(shape, heads, Buckets((64, 256, 512), (1, 16), 4), most)
        possible = sum(sizes) <= 512 and len(sizes) <= 4 and decoders <= 16
        assert (fitted is not None) == possible
        if fitted is not None:
            assert all(have >= need for have, need in zip(fitted, shape, strict=True))


class TestBurst:
    """Decode bursts."""

    def test_ends_rise_and_lie_within(self):
        bench = Bench(SMALLEST, page_size=4, pages=32)
        request = bench.add(20)
        bench.prefill((request, 0, 3))
        timing = bench.decode(4, (request, 3))
        assert timing.steps == len(timing.step_ends_ns) == 4
        times = (timing.started_ns, *timing.step_ends_ns)
        assert all(before < after for before, after in pairwise(times))
        assert timing.step_ends_ns[-1] <= timing.finished_ns

    def test_one_that_was_asked_to_end_before_it_began_does_one_step(self):
        bench = Bench(SMALLEST, page_size=4, pages=32)
        request = bench.add(20)
        bench.prefill((request, 0, 3))
        control = Control()
        control.end()
        assert bench.decode(9, (request, 3), control=control).steps == 1

    def test_one_that_is_asked_to_end_has_at_most_one_step_launched_ahead(self, monkeypatch):
        bench = Bench(SMALLEST, page_size=4, pages=32)
        request = bench.add(30)
        bench.prefill((request, 0, 3))
        control, launched = Control(), []
        launch = bench.device._launch

        def counted(shape, graphed):
            launched.append(shape)
            if len(launched) == 3:
                control.end()
            launch(shape, graphed)

        monkeypatch.setattr(bench.device, "_launch", counted)
        assert bench.decode(20, (request, 3), control=control).steps == 3

    def test_one_longer_than_what_is_sent_of_its_tokens_at_once(self):
        sizes = Sizes(64, 2, 64, given=0)  # room for four steps of two
        bench = Bench(SMALLEST, 4, 32, sizes=sizes)
        first, second = bench.add(30), bench.add(30)
        bench.prefill((first, 0, 3), (second, 0, 8))
        assert bench.decode(6, (first, 3), (second, 8)).steps == 6


def test_each_layer_waits_for_its_pages():
    bench = Bench(table(), page_size=4, pages=64)
    request = bench.add(30)
    bench.prefill((request, 0, 16))
    stored = bench.pool.k.clone(), bench.pool.v.clone()
    bench.pool.data.zero_()
    order: list[int] = []

    def load(layer: int) -> None:
        order.append(layer)
        bench.pool.k[layer].copy_(stored[0][layer])
        bench.pool.v[layer].copy_(stored[1][layer])

    asked: list[int] = []

    def loads_of(number):
        asked.append(number)
        return load

    bench.device.loads_of = loads_of
    bench.prefill((request, 16, 5), load=7)
    assert order == [0, 1]
    assert asked == [7]
    bench.prefill((request, 21, 2))
    assert order == [0, 1]
    assert asked == [7]


class TestRefuses:
    """Errors that say what is wrong."""

    def test_a_pool_of_another_shape(self):
        bench = Bench(table(), 4, 8)
        other = random_model(config_of(table(num_hidden_layers=3)), DEVICE, torch.float32, 0)
        with pytest.raises(InputError, match=r"needs a KV cache of .*3, 2, 16, 16"):
            ModelDevice(other, bench.pool, Sizes(64, 2, 64))

    def test_a_model_with_another_attention(self):
        bench = Bench(table(), 4, 8)
        bench.model.config._attn_implementation = "sdpa"
        with pytest.raises(InputError, match="built with attention sdpa"):
            ModelDevice(bench.model, bench.pool, Sizes(64, 2, 64))

    def test_a_configuration_that_transformers_refuses(self):
        with pytest.raises(InputError, match="llama model of this configuration cannot be"):
            config_of(table(model_type="llama", num_attention_heads=6))

    def test_a_model_with_sliding_windows(self):
        keys = table(model_type="mistral", sliding_window=16)
        with pytest.raises(InputError, match="has a sliding window"):
            Bench(keys, 4, 8)

    def test_a_family_that_it_does_not_know(self):
        with pytest.raises(InputError, match="deepseek_v3"):
            config_of(table(model_type="deepseek_v3"))

    def test_steps_that_do_not_fit(self):
        bench = Bench(table(), 4, 64, sizes=Sizes(16, 2, 10))
        request = bench.add(100)
        with pytest.raises(InputError, match="at most 16 tokens and 2 requests"):
            bench.prefill((request, 0, 17))
        with pytest.raises(InputError, match="more than the 10 pages"):
            bench.prefill((request, 50, 4))
        bench.pages[request] += [0] * 3
        bench.device = ModelDevice(bench.model, bench.pool, Sizes(16, 2, 64))
        with pytest.raises(InputError, match=r"tokens up to 100, a burst needs them up to 103"):
            bench.decode(4, (request, 99))

    def test_too_few_pages(self):
        bench = Bench(table(), 4, 64)
        request = bench.add(20)
        bench.pages[request].pop()
        with pytest.raises(InputError, match="4 pages of 4 tokens do not hold 20"):
            bench.prefill((request, 0, 20))

    def test_what_is_no_computing(self):
        bench = Bench(table(), 4, 8)
        with pytest.raises(InputError, match="does not carry out"):
            bench.device.run(Copy("h2d", 1, 1, 1), Control())

    def test_a_folder_without_a_model(self, tmp_path):
        with pytest.raises(InputError, match="No such file"):
            local_model(str(tmp_path), DEVICE, torch.float32)


def test_local_weights(tmp_path):
    bench = Bench(table(), 4, 16)
    bench.model.save_pretrained(tmp_path)
    again = local_model(str(tmp_path), DEVICE, torch.float32)
    tokens = np.arange(9, dtype=np.int32) % VOCAB
    assert torch.equal(plain_logits(again, tokens), plain_logits(bench.model, tokens))
    ModelDevice(again, bench.pool, Sizes(64, 2, 64)).close()


def test_a_model_by_its_name_or_file(tmp_path):
    assert read_config("qwen/qwen3-8b")["num_hidden_layers"] == 36
    (tmp_path / "config.json").write_text(json.dumps(table()))
    for place in (tmp_path, tmp_path / "config.json"):
        model = make_model(str(place), DEVICE, torch.float32, seed=3)
        tokens = np.arange(5, dtype=np.int32)
        same = random_model(config_of(table()), DEVICE, torch.float32, 3)
        assert torch.equal(plain_logits(model, tokens), plain_logits(same, tokens))


def test_a_seed_makes_a_model():
    config = config_of(table())
    tokens = np.arange(9, dtype=np.int32)
    first, same, other = (
        plain_logits(random_model(config, DEVICE, torch.float32, seed), tokens)
        for seed in (1, 1, 2)
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


@gpu
@pytest.mark.skipif(DEVICE.type == "cpu", reason="needs a CUDA GPU")
class TestGraphs:
    """CUDA graphs."""

    def test_steps_as_graphs_compute_the_same(self):
        bench = Bench(table(), page_size=16, pages=200)
        assert bench.device.warm_up() > 0
        graphs = bench.device.graphs
        assert graphs > 0
        first, second, third = (bench.add(300) for _ in range(3))
        assert bench.prefill((first, 0, 100)).setup_ns == 0
        assert bench.prefill((first, 100, 50)).setup_ns == 0
        bench.prefill((second, 0, 3), (third, 0, 120))
        assert bench.decode(40, (first, 150), (second, 3), (third, 120)).setup_ns == 0
        assert bench.device.graphs == graphs
        mixed = bench.prefill((second, 43, 20), decoders=((first, 190), (third, 160)))
        assert mixed.setup_ns > 0
        assert bench.device.graphs == graphs + 1
        again = bench.prefill((second, 63, 20), decoders=((first, 191), (third, 161)))
        assert again.setup_ns == 0

    def test_graphs_and_eager_steps_give_the_same_tokens(self):
        answers = []
        for graphs in ("auto", "never"):
            bench = Bench(table(), page_size=16, pages=200, graphs=graphs)
            first, second = bench.add(200), bench.add(200)
            bench.prefill((first, 0, 90), (second, 0, 30))
            bench.decode(17, (first, 90), (second, 30))
            answers.append(bench.device.logits())
        assert (answers[0] - answers[1]).abs().max() <= 1e-4


def _step(new: int):
    return Step(0, new, 0, np.zeros(new, np.int32), ())
