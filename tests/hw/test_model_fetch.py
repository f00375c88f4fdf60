"""A step's numbers come from pinned memory by a kernel: all of them, nothing else, past a load."""

from __future__ import annotations

import pytest

import hw  # noqa: F401  # before Triton is imported

pytest.importorskip("transformers")

import numpy as np
import torch

from hw.model.buffers import Shape, Sizes, StepBuffers
from hw.model.fetch import ALIGN, BLOCK, fetch

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
SIZE = 64 * BLOCK


@pytest.fixture(autouse=True)
def needs_it(request: pytest.FixtureRequest) -> None:
    on_gpu = "cuda" in request.node.name
    if on_gpu != torch.cuda.is_available():
        pytest.skip(
            "kernels are compiled where there is a GPU, and interpreted where there is none"
        )


def numbers(device: str, seed: int) -> torch.Tensor:
    made = torch.from_numpy(np.random.default_rng(seed).integers(1, 1 << 31, SIZE, np.int32))
    return made.pin_memory() if device == "cuda" else made


@pytest.mark.parametrize("device", DEVICES)
def test_every_span_and_nothing_else(device: str) -> None:
    random = np.random.default_rng(7)
    for turn, lengths in enumerate(([1], [BLOCK, 0, 17], [3 * BLOCK + 5, 1, 31, 9 * BLOCK, 33])):
        host = numbers(device, turn)
        spans, place = SIZE - ALIGN, ALIGN * int(random.integers(0, 9))
        expected = torch.zeros(SIZE, dtype=torch.int32)
        for number, length in enumerate(lengths):
            host[spans + 2 * number], host[spans + 2 * number + 1] = place, length
            expected[place : place + length] = host[place : place + length]
            place += -(-length // ALIGN) * ALIGN + ALIGN * int(random.integers(0, 3))
        there = torch.zeros(SIZE, dtype=torch.int32, device=device)
        fetch(host, there, spans, len(lengths))
        assert torch.equal(there.cpu(), expected)


@pytest.mark.parametrize("device", DEVICES)
def test_buffers_send_what_was_laid_out_since(device: str) -> None:
    buffers = StepBuffers(torch.device(device), 4, Sizes(tokens=64, rows=8, table_entries=64))
    shape = Shape(32, 2, 3, 4)
    buffers.lay_nothing(shape)
    assert buffers.view("slots", 32).tolist() == [-1] * 32
    assert buffers.view("last", shape.results).tolist() == [0, 0, 32, 33, 34, 35]
    buffers.view("slots").fill_(5)
    buffers.send()  # of nothing
    assert buffers.view("slots", 32).tolist() == [5] * 32


@pytest.mark.gpu
def test_it_does_not_wait_for_a_load_that_was_begun_before_cuda() -> None:
    source = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(source, device="cuda")
    host = numbers("cuda", 1)
    host[SIZE - 2], host[SIZE - 1] = 0, 5 * BLOCK
    there = torch.zeros(SIZE, dtype=torch.int32, device="cuda")
    fetch(host, there, SIZE - 2, 1)  # compiles it
    torch.cuda.synchronize()
    there.zero_()
    torch.cuda.synchronize()
    loading, computing = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(loading):
        target.copy_(source, non_blocking=True)
        loaded = loading.record_event()
    with torch.cuda.stream(computing):
        fetch(host, there, SIZE - 2, 1)
    computing.synchronize()
    assert not loaded.query(), "it came after a load of some 20 ms"
    assert torch.equal(there[: 5 * BLOCK].cpu(), host[: 5 * BLOCK])
