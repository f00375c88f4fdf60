"""Steps that wait for their layers, as graphs in parts and without: right, in order, and never
before the pages are there.

On a CPU `OnTheSpot` stands for the graphs: it runs a step of the graph's shape where one would be
launched. What it cannot show, that parts that were captured apart fit together, needs a GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Literal

import pytest

pytest.importorskip("transformers")

from fault_runs import DEVICES
from tiny_models import DEVICE, Bench, table

# isort: split
import torch

from hicache.errors import TransferError
from hw.model.attention import WaitLayer
from hw.model.buffers import Shape, Sizes
from hw.model.graphs import Buckets, StepGraphs
from hw.transfers.driver import Driver
from hw.transfers.layerwise import LayerLoad
from hw.transfers.queues import make_queue

LAYERS = 3
KEYS = table(num_hidden_layers=LAYERS, num_key_value_heads=1)
LATE_MS = 15  # each layer, on a GPU


class OnTheSpot:
    """`StepGraphs` for where there is no GPU. `launched`: shapes, in parts or not."""

    def __init__(self) -> None:
        self.launched: list[tuple[Shape, str]] = []
        self._bodies: dict[tuple[Shape, str], Callable] = {}

    def __len__(self) -> int:
        return len(self._bodies)

    def __contains__(self, shape: Shape) -> bool:
        return (shape, "whole") in self._bodies

    def has_parts(self, shape: Shape) -> bool:
        return (shape, "parts") in self._bodies

    def capture(self, shape: Shape, body: Callable[[], object]) -> int:
        self._bodies[shape, "whole"] = body
        return 1

    def capture_parts(self, shape: Shape, body: Callable[[WaitLayer], object]) -> int:
        self._bodies[shape, "parts"] = body
        return 1

    def replay(self, shape: Shape) -> None:
        self.launched.append((shape, "whole"))
        self._bodies[shape, "whole"]()

    def replay_parts(self, shape: Shape, wait_layer: WaitLayer) -> None:
        self.launched.append((shape, "parts"))
        self._bodies[shape, "parts"](wait_layer)


class Loads(Bench):
    """A bench whose pages can be taken away and brought back, layer by layer and late."""

    def __init__(self, **options) -> None:
        super().__init__(KEYS, page_size=4, pages=96, **options)
        if DEVICE.type == "cpu":
            self.device._graphs = OnTheSpot()  # pyright: ignore[reportAttributeAccessIssue]
        self.loads: dict[int, LayerLoad] = {}
        self.not_waited_for: int | None = None  # a layer
        self.device.loads_of = self.wait_of
        self._asked = threading.Condition()
        self._wanted: dict[int, int] = {}  # by load: layers that were asked for
        self._threads: list[threading.Thread] = []

    def wait_of(self, number: int) -> WaitLayer:
        """What makes a layer wait for load `number`."""

        def wait(layer: int) -> None:
            if layer == self.not_waited_for:
                return
            self._want(number, layer + 1)
            self.loads[number].wait_layer(layer)

        return wait

    def take_away(self) -> tuple[torch.Tensor, torch.Tensor]:
        """All pages; what was in them."""
        stored = self.pool.k.clone(), self.pool.v.clone()
        self.pool.k.fill_(float("nan"))
        self.pool.v.fill_(float("nan"))
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        return stored

    def bring(
        self,
        number: int,
        stored: tuple[torch.Tensor, torch.Tensor],
        *,
        enqueued: Literal["ahead", "behind"] = "behind",
        fails_at: int = LAYERS,
    ) -> None:
        """Load `number` begins, with a thread and a queue of its own. On a GPU the queue is late.

        enqueued: "behind", each layer once somebody has asked for it or a later one, so that it is
        never there before by chance; or "ahead", as soon as can be.
        """
        load = self.loads[number] = LayerLoad(LAYERS)
        self._wanted[number] = LAYERS if enqueued == "ahead" else 0

        def work() -> None:
            queue = make_queue(DEVICE, Driver() if DEVICE.type == "cuda" else None)
            load.begin(queue)
            for layer in range(LAYERS):
                with self._asked:
                    assert self._asked.wait_for(lambda: self._wanted[number] > layer, 30)  # noqa: B023
                if layer == fails_at:
                    load.fail(TransferError("the device refuses"))
                    return
                with queue.running(), torch.inference_mode():
                    if DEVICE.type == "cuda":
                        torch.cuda._sleep(LATE_MS * 2_000_000)  # 1 ms at 2 GHz is so many cycles
                    self.pool.k[layer].copy_(stored[0][layer])
                    self.pool.v[layer].copy_(stored[1][layer])
                load.loaded()
            load.end(lambda: None, 0)

        self._threads.append(threading.Thread(target=work))
        self._threads[-1].start()

    def join(self) -> None:
        """All loads come, or fail."""
        for number in self.loads:
            self._want(number, LAYERS)
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()

    def _want(self, number: int, layers: int) -> None:
        with self._asked:
            self._wanted[number] = max(self._wanted[number], layers)
            self._asked.notify_all()

    def launches(self) -> list[tuple[Shape, str]]:
        """On a CPU: steps that would have been launched as graphs."""
        stub = self.device._graphs
        assert isinstance(stub, OnTheSpot)
        return stub.launched

    def launched_in_parts(self) -> int:
        """Steps that ran as graphs in parts, as far as it is known."""
        stub = self.device._graphs
        if isinstance(stub, OnTheSpot):
            return sum(how == "parts" for _, how in stub.launched)
        assert isinstance(stub, StepGraphs)
        return len(stub._parts)


@pytest.mark.parametrize("device", DEVICES)
class TestWaiting:
    """Logits of steps whose pages still come are those of attention without a cache."""

    @pytest.mark.parametrize("enqueued", ["ahead", "behind"])
    def test_a_step_that_waits_computes_the_same(self, device, enqueued):
        bench = Loads()
        bench.device.warm_up(decoders=1, prefill_tokens=16)
        request = bench.add(40)
        bench.prefill((request, 0, 16))
        bench.bring(7, bench.take_away(), enqueued=enqueued)
        timing = bench.prefill((request, 16, 9), load=7)
        assert timing.setup_ns == 0
        if DEVICE.type == "cuda":
            assert timing.finished_ns - timing.started_ns >= (LAYERS - 1) * LATE_MS * 1e6
        bench.join()
        assert bench.launched_in_parts() == 1
        bench.prefill((request, 25, 3))
        bench.decode(4, (request, 28))

    @pytest.mark.parametrize("layer", range(LAYERS))
    def test_one_that_does_not_wait_for_a_layer_does_not(self, device, layer):
        """So that the tests here can fail."""
        bench = Loads()
        request = bench.add(40)
        bench.prefill((request, 0, 16))
        bench.bring(7, bench.take_away())
        bench.not_waited_for = layer
        with pytest.raises(AssertionError, match="nan"):
            bench.prefill((request, 16, 9), load=7)
        bench.join()

    def test_loads_one_after_the_other(self, device):
        bench = Loads()
        requests = [bench.add(60, like=0, shared_tokens=shared) for shared in (0, 16, 16)]
        bench.prefill((requests[0], 0, 16))
        for number, request in enumerate(requests):
            bench.bring(number, bench.take_away())
            bench.prefill((request, 16, 5 + number), load=number)
            bench.join()
        assert bench.launched_in_parts() == (3 if DEVICE.type == "cpu" else 1)

    def test_chunks_of_several_requests_with_a_batch_riding_along(self, device):
        bench = Loads()
        first, second, third = (bench.add(60) for _ in range(3))
        bench.prefill((first, 0, 21), (second, 0, 8), (third, 0, 12))
        for number, done in enumerate((0, 1)):
            bench.bring(number, bench.take_away())
            bench.prefill(
                (first, 21 + 6 * done, 6), (second, 8 + 5 * done, 5),
                decoders=((third, 12 + done),), load=number,
            )  # fmt: skip
            bench.join()
        bench.decode(3, (first, 33), (second, 18), (third, 14))

    def test_a_load_that_has_come_already(self, device):
        bench = Loads()
        request = bench.add(40)
        bench.prefill((request, 0, 16))
        bench.bring(0, bench.take_away())
        bench.join()
        bench.prefill((request, 16, 9), load=0)

    @pytest.mark.parametrize("layer", range(LAYERS))
    def test_a_load_that_fails_fails_the_step_and_no_other(self, device, layer):
        bench = Loads()
        request = bench.add(40)
        bench.prefill((request, 0, 16))
        stored = bench.take_away()
        bench.bring(0, stored, fails_at=layer)
        with pytest.raises(TransferError, match=r"will not come: the device refuses"):
            bench.prefill((request, 16, 9), load=0)
        bench.join()
        bench.bring(1, stored)
        bench.prefill((request, 16, 9), load=1)
        bench.join()
        bench.prefill((request, 25, 2))

    def test_products_that_leave_multiprocessors_to_the_load(self, device):
        bench = Loads(spare_multiprocessors=4)
        request = bench.add(40)
        bench.prefill((request, 0, 16))
        bench.bring(7, bench.take_away())
        bench.prefill((request, 16, 9), load=7)
        bench.join()
        bench.prefill((request, 25, 3))

    def test_without_graphs_of_such_steps(self, device):
        bench = Loads(graphs="whole")
        request = bench.add(40)
        bench.prefill((request, 0, 16))
        bench.bring(7, bench.take_away())
        bench.prefill((request, 16, 9), load=7)
        bench.join()
        assert bench.launched_in_parts() == 0


@pytest.mark.parametrize("device", DEVICES)
def test_warming_up_makes_them_where_loads_are_known(device):
    bench = Loads()
    bench.device.warm_up(prefill_tokens=32)
    warm = bench.device.graphs
    request = bench.add(60)
    bench.prefill((request, 0, 16))
    bench.bring(0, bench.take_away())
    assert bench.prefill((request, 16, 20), load=0).setup_ns == 0
    bench.join()
    assert bench.device.graphs == warm
    other = Loads()
    other.device.loads_of = None
    other.device.warm_up(prefill_tokens=32)
    assert other.device.graphs == warm - 2  # of 16 and of 32 tokens


@pytest.mark.parametrize("device", DEVICES)
class TestLongerOnes:
    """Sizes of which there are graphs in parts alone."""

    def longer(self, tokens: int = 256) -> Loads:
        return Loads(buckets=Buckets((16,), (1,), 2, (32, 48)), sizes=Sizes(tokens, 4, 4096))

    def test_a_step_that_waits_has_a_graph_and_another_of_its_size_has_none(self, device):
        bench = self.longer()
        bench.device.warm_up(decoders=1, prefill_tokens=48)
        warm = bench.device.graphs
        assert warm == 5  # of 48, 32 and 16 tokens in parts; whole: of 16, and of a decoder
        request, other = bench.add(64), bench.add(40)
        bench.prefill((request, 0, 16))
        bench.bring(0, bench.take_away())
        assert bench.prefill((request, 16, 35), load=0).setup_ns == 0  # as one of 48
        bench.join()
        bench.prefill((other, 0, 35))
        bench.prefill((request, 51, 3))
        assert bench.device.graphs == warm
        if DEVICE.type == "cpu":
            assert [(shape.prefill_tokens, how) for shape, how in bench.launches()] == [
                (16, "whole"), (48, "parts"), (16, "whole")
            ]  # fmt: skip

    def test_what_a_capture_takes_is_set_up(self, device):
        bench = self.longer()
        request = bench.add(64)
        bench.prefill((request, 0, 16))
        for past, first in ((16, True), (37, False)):
            bench.bring(past, bench.take_away())
            assert (bench.prefill((request, past, 21), load=past).setup_ns > 0) == first
            bench.join()

    def test_a_full_chunk_between_two_sizes_has_one_of_its_own(self, device):
        bench = self.longer(tokens=40)
        request = bench.add(64)
        bench.prefill((request, 0, 16))
        bench.bring(0, bench.take_away())
        bench.prefill((request, 16, 40), load=0)
        bench.join()
        assert bench.launched_in_parts() == 1


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (8, (8, 16, 32, 48)), (16, (16, 32, 48)), (40, (16, 32, 40, 48)), (48, (16, 32, 48)),
        (49, (16, 32, 48)), (8192, (16, 32, 48)),
    ],
)  # fmt: skip
def test_sizes_of_prefills_that_wait(most, expected):
    buckets = Buckets((16,), (1,), 2, (32, 48))
    assert buckets.waiting(most) == buckets._replace(prefill_tokens=expected)


def test_the_usual_sizes_are_rounded_up_by_little():
    """A product of so many tokens is computed in tiles of 128 of them in any case."""
    sizes = Buckets().waiting(8192).prefill_tokens
    assert max(after - before for before, after in pairwise(sizes)) <= 128
    assert sizes[-1] == 2048
