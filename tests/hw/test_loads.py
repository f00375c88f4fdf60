"""Where a thread that loads pages and one that computes meet."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("torch")

import hw  # noqa: F401  # before Triton is imported

# isort: split
import torch

from hicache.errors import TransferError
from hicache.operations import Copy
from hw.device import Control
from hw.loads import KEPT, LoadBook
from hw.pools import DevicePool, HostPool, KvLayout
from hw.transfers.device import TransferDevice
from hw.transfers.direct import Direct
from hw.transfers.queues import make_queue

CPU = torch.device("cpu")
LAYOUT = KvLayout(
    layers=3, kv_heads=1, head_dim_k=8, head_dim_v=8, page_size_tokens=4, dtype="bf16"
)
LOAD = Copy("h2d", 2, 2 * LAYOUT.page_bytes, 1, ((0, 2),), ((3, 2),))


def answers_of(book: LoadBook, number: int) -> tuple[threading.Thread, list[object]]:
    """A thread that waits for the layers of a load, one after the other."""
    answers: list[object] = []

    def wait() -> None:
        for layer in range(LAYOUT.layers):
            try:
                book.of(number).wait_layer(layer)
                answers.append(layer)
            except TransferError as error:
                answers.append(str(error))
                return

    thread = threading.Thread(target=wait)
    thread.start()
    return thread, answers


@pytest.mark.parametrize("waits_first", [True, False])
def test_whoever_comes_first_makes_the_entry(waits_first):
    device, host = DevicePool(LAYOUT, 8, CPU), HostPool(LAYOUT, 4, None)
    book = LoadBook(LAYOUT.layers)
    link = TransferDevice(Direct(device, host), "h2d", book)
    host.data.fill_(7)
    waiting = [answers_of(book, 5)] if waits_first else []
    timing = link.run(LOAD, Control(5))
    assert timing.finished_ns >= timing.started_ns
    for thread, answers in waiting or [answers_of(book, 5)]:
        thread.join(10)
        assert answers == [0, 1, 2]
    assert int(device.k[2][3].view(torch.uint8)[0, 0, 0]) == 7
    host.close()


def test_a_load_that_fails_fails_who_waits_for_it(monkeypatch):
    device, host = DevicePool(LAYOUT, 8, CPU), HostPool(LAYOUT, 4, None)
    book = LoadBook(LAYOUT.layers)
    link = TransferDevice(Direct(device, host), "h2d", book)
    thread, answers = answers_of(book, 5)
    with pytest.raises(Exception, match="page"):
        link.run(Copy("h2d", 2, 2 * LAYOUT.page_bytes, 1, ((3, 2),), ((0, 2),)), Control(5))
    thread.join(10)
    ((answer,),) = (answers,)
    assert "layer 0 will not come" in str(answer)
    host.close()


def test_a_run_that_is_being_stopped_keeps_nobody_waiting():
    book = LoadBook(LAYOUT.layers)
    begun = book.of(1)
    begun.begin(make_queue(CPU, None))
    thread, answers = answers_of(book, 2)
    book.close()
    thread.join(10)
    assert ["being stopped" in str(answer) for answer in answers] == [True]
    late, answers = answers_of(book, 3)
    late.join(10)
    assert "being stopped" in str(answers[0])
    begun.loaded(3)  # what has begun comes to its end
    begun.wait_layer(2)


def test_loads_are_kept_for_a_while():
    book = LoadBook(1)
    first, second = book.of(0), book.of(1)
    for number in range(2, KEPT + 1):
        book.of(number)
    assert book.of(1) is second
    assert book.of(0) is not first
