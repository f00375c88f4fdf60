"""How steps are captured in parts and launched, by what is done with CUDA's graphs and streams."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")

from hicache.errors import TransferError
from hw.model import graphs
from hw.model.attention import WaitLayer
from hw.model.buffers import Shape
from hw.model.graphs import StepGraphs


class Tape:
    """In the place of CUDA's graphs and streams: what is done with them, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.recording: int | None = None
        made = 0
        tape = self

        class Graph:
            """One that has a number and no work."""

            def __init__(self) -> None:
                nonlocal made
                self.number = made
                made += 1

            def capture_begin(self, pool: object, capture_error_mode: str) -> None:
                assert capture_error_mode == "thread_local"
                assert tape.recording is None
                tape.recording = self.number
                tape.log.append(f"begin {self.number} in {pool}")

            def capture_end(self) -> None:
                assert tape.recording == self.number
                tape.recording = None

            def pool(self) -> str:
                return "the pool"

            def replay(self) -> None:
                tape.log.append(f"launch {self.number}")

        monkeypatch.setattr(graphs.torch.cuda, "CUDAGraph", Graph)
        monkeypatch.setattr(graphs.torch.cuda, "empty_cache", lambda: None)
        monkeypatch.setattr(graphs.torch.cuda, "stream", lambda stream: stream)

    def synchronize(self) -> None:
        """As a stream does."""
        assert self.recording is None

    def __enter__(self) -> None:
        """As `torch.cuda.stream` does."""

    def __exit__(self, *_: object) -> None:
        """Likewise."""

    def body(self, wait_layer: WaitLayer) -> None:
        """A step of three layers."""
        for layer in range(3):
            wait_layer(layer)
            self.log.append(f"layer {layer} in {self.recording}")


SHAPE = Shape(16, 1, 1, 0)


def test_a_part_ends_where_a_layer_waits(monkeypatch):
    tape = Tape(monkeypatch)
    found = StepGraphs(tape)  # pyright: ignore[reportArgumentType]
    assert not found.has_parts(SHAPE)
    assert found.capture_parts(SHAPE, tape.body) >= 0
    assert tape.log == [
        "layer 0 in None", "layer 1 in None", "layer 2 in None",  # once, for kernels to be compiled
        "begin 0 in None",
        "begin 1 in the pool", "layer 0 in 1",
        "begin 2 in the pool", "layer 1 in 2",
        "begin 3 in the pool", "layer 2 in 3",
    ]  # fmt: skip
    assert found.has_parts(SHAPE)
    assert SHAPE not in found
    assert len(found) == 1
    tape.log.clear()
    found.replay_parts(SHAPE, lambda layer: tape.log.append(f"wait {layer}"))
    assert tape.log == [
        "launch 0", "wait 0", "launch 1", "wait 1", "launch 2", "wait 2", "launch 3"
    ]  # fmt: skip
    found.close()
    assert not found.has_parts(SHAPE)


def test_behind_a_wait_that_fails_nothing_is_launched(monkeypatch):
    tape = Tape(monkeypatch)
    found = StepGraphs(tape)  # pyright: ignore[reportArgumentType]
    found.capture_parts(SHAPE, tape.body)
    tape.log.clear()

    def wait(layer: int) -> None:
        if layer == 1:
            raise TransferError("it will not come")

    with pytest.raises(TransferError):
        found.replay_parts(SHAPE, wait)
    assert tape.log == ["launch 0", "launch 1"]


def test_a_step_that_cannot_be_captured_leaves_nothing(monkeypatch):
    tape = Tape(monkeypatch)
    found = StepGraphs(tape)  # pyright: ignore[reportArgumentType]

    def body(wait_layer: WaitLayer) -> None:
        tape.body(wait_layer)
        if tape.recording is not None:
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        found.capture_parts(SHAPE, body)
    assert tape.recording is None
    assert not found.has_parts(SHAPE)
    found.capture_parts(SHAPE, tape.body)
    assert found.has_parts(SHAPE)
