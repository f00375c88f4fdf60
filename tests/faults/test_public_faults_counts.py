"""Faults that users reported of what is counted and measured: each report as a run, with the
counters that are right, and the same run with the fault put back, which must not pass.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bench import Bench
from engine_runs import assert_at_rest

from calibrate.points import Point
from calibrate.sampling import Rule, Sampled, sample
from hicache.errors import InputError
from hicache.metrics import Metrics
from hicache.node import DEVICE, HOST
from hicache.ranks import Questions
from hicache.tree import HiRadixTree, Match
from scenario.load import load_scenario
from scenario.presets import PRESET_NAMES
from sim.replay import Outcome, replay

# ---------------------------------------------------------------------- full reuse
# mooncake#3331: three prompts of 50,000 tokens were stored, the GPU's cache was cleared, and the
# same prompts came again: of one all was reused, of the next a third, of the last nothing.

PAGE = 64
PROMPT_PAGES, TAIL = divmod(50_000, PAGE)
ALL = 49_999 // PAGE * PAGE
L3_KINDS = {"tree": None, "store": {"stop": "wait_complete", "limit_fraction": 1.0}}


def stored_and_asked_again(kind: str) -> list[int]:
    """Tokens that each of three prompts reuses of L3, in which there is room for all, when L1 and
    L2, which have room for one, are empty.
    """
    bench = Bench(
        PROMPT_PAGES + 20, 2 * PROMPT_PAGES, 4 * PROMPT_PAGES, page=PAGE, prefetch=L3_KINDS[kind]
    )
    for turn in range(2):
        for place in range(3):
            first = 10_000 * place
            at_ns = 1_000_000 * turn + 10_000 * place
            bench.ask(at_ns, range(first, first + PROMPT_PAGES), tail=TAIL)
    bench.run(500_000)
    for tier in (DEVICE, HOST):
        bench.tree.evict(tier, 10 * PROMPT_PAGES)
        assert not bench.tree.tiers[tier].resident
    bench.run()
    assert_at_rest(bench.engine)
    rows = bench.rows()
    assert all(row["prompt_tokens"] == 50_000 for row in rows)
    return [row["storage_tokens"] for row in rows[3:]]


@pytest.mark.parametrize("kind", L3_KINDS)
def test_mooncake_3331_every_full_page_of_every_prompt_is_reused(kind: str) -> None:
    assert ALL == 49_984
    assert stored_and_asked_again(kind) == [ALL] * 3


@pytest.mark.parametrize("kind", L3_KINDS)
def test_mooncake_3331_put_back(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """L3 is found as far as 256 pages of L2 go, and no further."""
    if kind == "tree":
        match = HiRadixTree.match

        def short(self: HiRadixTree, runs: Any) -> Match:
            found = match(self, runs)
            deep = min(found.storage, max(found.host, 256))
            return Match(found.node, found.depth, found.device, found.host, deep, found.tokens)

        monkeypatch.setattr(HiRadixTree, "match", short)
    else:
        leading = Questions._leading  # pyright: ignore[reportPrivateUsage]

        async def first_256(self: Questions, prefetch: Any, rank: int) -> int:
            return min(await leading(self, prefetch, rank), 256)

        monkeypatch.setattr(Questions, "_leading", first_256)
    assert stored_and_asked_again(kind) != [ALL] * 3


def test_mooncake_3331_holds_in_every_preset(tmp_path: Path) -> None:
    """From L1, which needs no L3. `block-lru` counts partly filled pages, and lets all hit."""
    path = tmp_path / "twice.jsonl"
    ids = list(range(-(-50_000 // 512)))
    rows = [
        {"timestamp": 60_000 * turn, "input_length": 50_000, "output_length": 1, "hash_ids": ids}
        for turn in range(2)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for preset in PRESET_NAMES:
        options = {"preset": preset, "trace.path": str(path), "tiers.l1": "2000pages",
                   "tiers.page_size_tokens": PAGE}  # fmt: skip
        columns: Any = replay(load_scenario(None, options)).columns
        reused = columns["device_tokens"][1]
        assert reused == (50_000 if preset == "block-lru" else ALL), preset


# ---------------------------------------------------------------------- what is the hit rate?
# sglang#11668: a user could not tell from a server's counters what its hit rate was, nor what each
# tier had given.


def served(preset: str, folder: Path) -> Outcome:
    """Agents on small tiers, all of which serve hits."""
    lines = (Path(__file__).resolve().parents[2] / "data" / "agents.jsonl").read_text()
    path = folder / "agents.jsonl"
    path.write_text("".join(line + "\n" for line in lines.splitlines()[:150]))
    options = {
        "preset": preset, "trace.path": str(path), "trace.speed": 0.5, "tiers.l1": "250pages",
        "tiers.l2": "600pages", "tiers.l3": "6000pages", "tiers.page_size_tokens": 128,
        "engine.check_every_steps": 1, "prefetch.stop": "wait_complete",
        "prefetch.limit": "host",
    }  # fmt: skip
    return replay(load_scenario(None, options))


def assert_closes(outcome: Outcome) -> None:
    summary: Any = outcome.summary
    cached = summary["cached_tokens_total"]
    prompt = summary["prompt_tokens"]
    assert set(cached) == {"device", "host", "storage"}
    assert sum(cached.values()) + summary["computed_tokens"] == prompt
    assert summary["cache_hit_rate"] == pytest.approx(sum(cached.values()) / prompt)
    columns: Any = outcome.columns
    for tier, tokens in cached.items():
        assert sum(columns[f"{tier}_tokens"]) == tokens
    sources = [columns[f"{name}_tokens"] for name in (*cached, "computed")]
    for *parts, tokens in zip(*sources, columns["prompt_tokens"], strict=True):
        assert sum(parts) == tokens


@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_sglang_11668_tiers_add_up_to_what_was_cached_and_with_computed_to_prompts(
    preset: str, tmp_path: Path
) -> None:
    outcome = served(preset, tmp_path)
    assert_closes(outcome)
    cached: Any = outcome.summary["cached_tokens_total"]
    assert all(cached.values()), "a tier was of no use: this run shows nothing"


@pytest.mark.parametrize("preset", ["mini-hicache", "sglang-0.5.20"])
def test_sglang_11668_put_back(
    preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was loaded counts for L1, too, since it lies there when the prompt is computed."""
    finish_row = Metrics.finish_row

    def twice(self: Metrics, request: Any, page: int, pages: Any, *rest: Any) -> None:
        finish_row(self, request, page, pages, *rest)
        self.cached_tokens[0] += pages[1] * page

    monkeypatch.setattr(Metrics, "finish_row", twice)
    with pytest.raises(AssertionError):
        assert_closes(served(preset, tmp_path))


# ---------------------------------------------------------------------- asynchronous launches
# lmcache#1755: the time of a copy was that of its launch, and the bandwidth beyond what the link
# can carry.

LINK = 5e7  # bytes a second: a copy takes far longer than a busy machine takes to launch one
SIZE = 4 << 20


class LaunchedQueue:
    """A queue whose copies are launched, and done some time later, as on a GPU: the bytes are there
    when a mark that was made behind them has been waited for.
    """

    def __init__(self, inner: Any, *, waits: bool) -> None:
        self._inner = inner
        self._waits = waits
        self._under_way: list[threading.Thread] = []

    def copy(self, target: int, source: int, size: int) -> None:
        def act() -> None:
            time.sleep(size / LINK * 1.2)
            self._inner.copy(target, source, size)

        thread = threading.Thread(target=act)
        thread.start()
        self._under_way.append(thread)

    def mark(self) -> LaunchedQueue:
        return self

    def synchronize(self) -> None:
        if self._waits:
            self.finish()

    def finish(self) -> None:
        for thread in self._under_way:
            thread.join()
        self._under_way.clear()


@pytest.fixture
def probed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], Sampled]:
    """Measures a copy of `SIZE` bytes on a GPU that is waited for, or is not."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    import hw.transfers.queues
    from calibrate.probes.bench import Bench as Memory
    from calibrate.probes.bench import Scale
    from calibrate.probes.transfers import TransfersProbe
    from scenario.geometry import load_geometry

    config = {
        "model_type": "qwen3", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 61,
        "max_position_embeddings": 4096, "tie_word_embeddings": False, "torch_dtype": "float32",
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    make_queue = hw.transfers.queues.make_queue

    def measured(waits: bool) -> Sampled:
        queues: list[LaunchedQueue] = []

        def launched(*given: Any) -> LaunchedQueue:
            queues.append(LaunchedQueue(make_queue(*given), waits=waits))
            return queues[-1]

        monkeypatch.setattr("hw.transfers.queues.make_queue", launched)
        scale = Scale(device_tokens=SIZE // 64, host_bytes=2 * SIZE, chunk_tokens=32, batch=2,
                      context_tokens=48)  # fmt: skip
        memory = Memory("cpu", load_geometry(str(path)), str(path), 32, scale=scale)
        probe = TransfersProbe(memory, LINK)
        try:
            probe.open()
            point = Point("pcie.copy.h2d", (SIZE,))
            floor = probe.floor(point)
            return sample(
                probe.sampler(point), 0.05, time.monotonic, Rule(most=10), floor_ns=floor.ns,
                floor_reason=floor.reason,
            )  # fmt: skip
        finally:
            for queue in queues:
                queue.finish()
            probe.close()
            memory.close()

    return measured


def test_lmcache_1755_a_sample_is_the_copy_and_not_its_launch(
    probed: Callable[[bool], Sampled],
) -> None:
    found = probed(True)
    assert min(found.ns) >= SIZE / LINK * 1e9
    assert "rejected" not in found.note


def test_lmcache_1755_put_back(probed: Callable[[bool], Sampled]) -> None:
    """The clock stops when the copy is launched: what the link cannot carry is no sample."""
    with pytest.raises(InputError, match="faster than the link can carry the bytes"):
        probed(False)
