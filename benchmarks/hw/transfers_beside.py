"""Loads beside something else: layer by layer beside computing, and both directions at once."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch
from transfers_bench import DIRECTIONS, Bench, timed_us
from transfers_report import MIB, gib_s

from hw.live import SWITCH_INTERVAL_S
from hw.model.products import leaving
from hw.transfers.auto import BACKENDS
from hw.transfers.driver import Direction
from hw.transfers.layerwise import LayerLoad
from hw.transfers.lists import runs_of
from hw.transfers.queues import CudaQueue


def layerwise(bench: Bench, tokens: int) -> list[dict]:
    """How much of the smaller of load and compute is hidden when layers are waited for singly.

    Compute is one matrix product a layer; in all about as long as the load, half of it and twice.
    As in a run: loads have a thread that is there already, which gets the interpreter as soon as
    there, and products leave a back-end's kernels what they want. Compute alone leaves nothing.
    """
    layers = bench.layout.layers
    lists = bench.lists(tokens // bench.page_size_tokens)
    weights = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    stream = torch.cuda.Stream()
    kept: list[torch.Tensor] = []  # what graphs read must outlive them

    def graph_of(rows: int, spare: int) -> torch.cuda.CUDAGraph:
        data = torch.randn(rows, 4096, device="cuda", dtype=torch.bfloat16)
        kept.append(data)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream), leaving(spare):
            torch.mm(data, weights)
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, stream=stream):
                torch.mm(data, weights)
        return graph

    def compute(graph: torch.cuda.CUDAGraph, load: LayerLoad | None) -> None:
        with torch.cuda.stream(stream):
            for layer in range(layers):
                if load is not None:
                    load.wait_layer(layer)
                graph.replay()
        stream.synchronize()

    rows = []
    with ThreadPoolExecutor(1) as worker, _switching_as_in_a_run():
        for name, backend in bench.backends.items():

            def load_only(backend=backend) -> None:
                backend.load_layers(lists[1], lists[0]).finish()

            load_only()
            load_us = timed_us(load_only, 7)
            for share in (0.5, 1.0, 2.0):
                # About 0.7 PFLOP/s: the rows of a product that lasts as long as a layer's load.
                wanted_us = load_us * share / layers
                count = max(128, round(wanted_us * 7e8 / (2 * 4096 * 4096) / 128) * 128)
                alone, graph = graph_of(count, 0), graph_of(count, backend.layer_multiprocessors)
                compute(alone, None)
                compute_us = timed_us(lambda alone=alone: compute(alone, None), 7)

                def both(graph=graph, backend=backend) -> None:
                    load = LayerLoad(layers)

                    def run() -> None:
                        # As a worker does: it has nothing to do with the model's stream.
                        backend.load_layers(lists[1], lists[0], load=load, alone=True).finish()

                    loaded = worker.submit(run)
                    compute(graph, load)
                    loaded.result()

                both()
                both_us = timed_us(both, 7)
                hidden = (load_us + compute_us - both_us) / min(load_us, compute_us)
                row = {"backend": name, "tokens": tokens, "load": load_us, "compute": compute_us}
                rows.append(row | {"both": both_us, "hidden": hidden})
    return rows


@contextmanager
def _switching_as_in_a_run() -> Iterator[None]:
    """Threads that wait for the interpreter's lock ask for it as soon as in `hicache run`."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)


def duplex(bench: Bench) -> list[dict]:
    """Both directions at once, each in its thread, against plain copies doing the same."""
    count = 512 * MIB // bench.layout.page_bytes
    size = count * bench.layout.page_bytes
    rows = []
    for name in ("plain", *bench.backends):
        acts = [_half(bench, name, direction, count) for direction in DIRECTIONS]
        for act in acts:
            act()

        def both(acts=acts) -> None:
            threads = [
                threading.Thread(target=lambda act=act: [act() for _ in range(4)]) for act in acts
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        rows.append({"backend": name, "each_way_gib_s": gib_s(4 * size, timed_us(both, 3))})
    return rows


def _half(bench: Bench, name: str, direction: Direction, count: int) -> Callable[[], object]:
    """A copy of `count` pages within one half of both pools: each direction has its own."""
    driver = bench.queue.driver
    half = bench.device_pool.pages // 2
    first = half if direction == "h2d" else 0
    if name == "plain":
        queue = CudaQueue(driver, torch.device("cuda"))
        size = count * bench.layout.page_bytes
        offset = first * bench.layout.page_bytes
        device, host = bench.device_pool.address + offset, bench.host_pool.address + offset
        target, source = (device, host) if direction == "h2d" else (host, device)

        def plain() -> None:
            queue.start()
            queue.copy(target, source, size)
            queue.stop()

        return plain
    backend = BACKENDS[name](bench.device_pool, bench.host_pool, driver)
    lists = [runs_of(bench.generator.permutation(half)[:count] + first) for _ in range(2)]

    def copy() -> None:
        backend.copy(direction, lists[0], lists[1], alone=True)

    return copy
