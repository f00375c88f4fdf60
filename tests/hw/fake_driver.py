"""A device for the compiled front, in plain memory: streams whose work is done in any order that
their events allow, at the last moment.
"""

from __future__ import annotations

import ctypes
import random
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from hicache.errors import TransferError
from hw.pools import DevicePool, KvLayout
from hw.transfers.driver import RowCopy
from hw.transfers.front_native import CALLS
from hw.transfers.kernels import Tiling, tiling

QUEUE, SIDE, MODEL = 1, 2, 3
FAILED, BROKEN, NO_CONTEXT, NOT_READY, NOT_SUPPORTED = 1, 2, 201, 600, 801
_POINTER, _NUMBER, _UNSIGNED = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint
_INT = ctypes.c_int
_TYPES = (
    (_INT, _NUMBER, _NUMBER, ctypes.c_size_t, _POINTER),
    (_INT, ctypes.POINTER(RowCopy), _POINTER),
    (_INT, *[_POINTER] * 3, ctypes.c_size_t, _POINTER, _POINTER, ctypes.c_size_t, _POINTER),
    (_INT, _POINTER, *[_UNSIGNED] * 7, _POINTER, ctypes.POINTER(_POINTER), _POINTER),
    (_INT, _POINTER, _POINTER),
    (_INT, _POINTER, _POINTER, _UNSIGNED),
    (_INT, _POINTER),
    (_INT, ctypes.POINTER(ctypes.c_float), _POINTER, _POINTER),
    (_INT, _POINTER, _NUMBER, ctypes.c_uint32, _UNSIGNED),
    (_INT, _POINTER),
)
_WITH_FAIL_INDEX = (*_TYPES[2][:-1], _POINTER, _POINTER)


class _Point:
    """What an event's record stands for."""

    reached = False


class _Word(_Point):
    """A word that is written when it is reached."""

    def __init__(self, address: int, value: int) -> None:
        self._at, self._value = ctypes.c_uint32.from_address(address), value

    @property
    def reached(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._at.value == self._value

    @reached.setter
    def reached(self, _: bool) -> None:
        self._at.value = self._value


class _Work(NamedTuple):
    act: Callable[[], object] | None  # None: this is a record
    point: _Point | None = None  # to reach, or, with `waits`, to wait for
    waits: bool = False


class Kernel(NamedTuple):
    """What a compiled kernel is known by."""

    function: int
    threads: int = 128
    shared_bytes: int = 0


class FakeMover:
    """Kernels between a pool and packed pages; `missing`: none is compiled."""

    def __init__(self, pool: DevicePool, *, missing: bool = False) -> None:
        self.shape: Tiling = tiling(pool.layout)
        self.pool = (pool.pages, pool.layout.layers * pool.pages * self.shape.k_words)
        self._missing = missing

    def compiled(self, direction: str, *, dense: bool) -> Kernel | None:
        """Its number says what it does."""
        return None if self._missing else Kernel(1 + (direction == "h2d") + 2 * dense)


class FakeDriver:
    """See the module. `fails`: the number of the call that is refused, from 0; None: no call.
    `words`: what it does with words to write: "writes", "refuses" or "has none". `lost`: what the
    device answers who asks how far it is, instead of going on. `refused`: the kind of call that is,
    whenever it comes. A thread that has not entered is refused, as by the CUDA driver.
    """

    max_pitch_bytes = 1 << 40

    def __init__(
        self, layout: KvLayout, seed: int = 0, *, batches: str = "now", words: str = "writes",
        fails: int | None = None,
    ) -> None:  # fmt: skip
        self.layout = layout
        self.fails = fails
        self.calls = 0
        self.broken: BaseException | None = None
        self.honours_waits = True
        self.lost: int | None = None
        self.refused: str | None = None
        self.made: list[str] = []
        self._words = words
        self._threads = threading.local()
        self.copies_batches = batches != "none"
        self.batch_has_fail_index = batches == "before"
        self._random = random.Random(seed)
        self._streams: dict[int, deque[_Work]] = {each: deque() for each in (QUEUE, SIDE, MODEL)}
        self._points: dict[int, _Point] = {}
        self._events = 100
        self._timed: set[int] = set()
        acts = (
            self._copy, self._copy_rows, self._copy_batch, self._launch, self._record, self._wait,
            self._await, self._elapsed, self._write, self._query,
        )  # fmt: skip
        types: list[tuple[Any, ...]] = list(_TYPES)
        if batches == "before":
            types[2] = _WITH_FAIL_INDEX
        self._kept = {
            call: ctypes.CFUNCTYPE(*each)(self._counted(act))
            for call, each, act in zip(CALLS.values(), types, acts, strict=True)
        }

    def make_event(self, *, timed: bool = True) -> int:
        """A new event; of one that is not timed no time can be asked."""
        self._events += 1
        if timed:
            self._timed.add(self._events)
        return self._events

    def enter(self) -> None:
        """From here on this thread may call."""
        self._threads.entered = True

    def address_of(self, call: str) -> int | None:
        """See `hw.transfers.front.Calls`."""
        if (call == "cuMemcpyBatchAsync" and not self.copies_batches) or (
            call == "cuStreamWriteValue32" and self._words == "has none"
        ):
            return None
        return ctypes.cast(self._kept[call], ctypes.c_void_p).value

    def refuse(self, name: str, code: int) -> NoReturn:
        """Raise."""
        if self.broken is not None:
            raise AssertionError from self.broken
        raise TransferError(f"{name}: {code}")

    @property
    def under_way(self) -> int:
        """Copies, kernels and words that were enqueued and not done."""
        return sum(
            each.act is not None or isinstance(each.point, _Word)
            for stream in self._streams.values()
            for each in stream
        )

    def _counted(self, act: Callable[..., int | None]) -> Callable[..., int]:
        def call(*arguments: object) -> int:
            self.calls += 1
            self.made.append(act.__name__)
            if self.calls - 1 == self.fails or act.__name__ == self.refused:
                return FAILED
            if not getattr(self._threads, "entered", False):
                return NO_CONTEXT
            try:
                return act(*arguments) or 0
            except BaseException as error:  # it cannot go through C
                self.broken = error
                return BROKEN

        return call

    def then(self, act: Callable[[], object]) -> None:
        """The model's stream has this to do."""
        self._put(MODEL, _Work(act))

    def settle(self) -> None:
        """Do all that was enqueued."""
        while any(self._streams.values()):
            self._step()

    def _put(self, stream: int, work: _Work) -> None:
        self._streams[stream].append(work)

    def _copy(self, target: int, source: int, size: int, stream: int) -> None:
        self._put(stream, _Work(lambda: ctypes.memmove(target, source, size)))

    def _copy_rows(self, rows: ctypes._Pointer[RowCopy], stream: int) -> None:
        asked = RowCopy.from_buffer_copy(rows.contents)  # it is read when it is enqueued
        source = asked.source_host or asked.source_device
        target = asked.target_host or asked.target_device
        assert {asked.source_kind, asked.target_kind} == {1, 2}

        def act() -> None:
            for row in range(asked.height):
                ctypes.memmove(
                    target + row * asked.target_pitch, source + row * asked.source_pitch,
                    asked.width,
                )  # fmt: skip

        self._put(stream, _Work(act))

    def _copy_batch(
        self, targets: int, sources: int, sizes: int, count: int, *rest: int | None
    ) -> None:
        lists = [(_NUMBER * count).from_address(at)[:] for at in (targets, sources, sizes)]
        copies = list(zip(*lists, strict=True))
        self._random.shuffle(copies)  # in no order among themselves

        def act() -> None:
            for target, source, size in copies:
                ctypes.memmove(target, source, size)

        stream = rest[-1]
        assert stream is not None
        self._put(stream, _Work(act))

    def _launch(self, function: int, programs: int, *rest: object) -> None:
        stream, arguments = rest[6], rest[7]
        assert isinstance(stream, int)
        numbers = [
            ctypes.c_int64.from_address(arguments[place]).value  # pyright: ignore[reportIndexIssue]
            for place in range(11)
        ]
        assert programs >= 1
        self._put(stream, _Work(lambda: self._kernel(function, numbers)))

    def _kernel(self, function: int, numbers: list[int]) -> None:
        """What `hw.transfers.kernels` does, by bytes."""
        device, packed, device_list, packed_list, first, count = numbers[:6]
        layer_first, layers, pool_pages, v_start_words, stride_words = numbers[6:]
        word = tiling(self.layout).bits // 8
        to_device, dense = (function - 1) % 2, (function - 1) // 2
        layout = self.layout
        for place in range(count):
            page = ctypes.c_int32.from_address(device_list + 4 * (first + place)).value
            there = place
            if not dense:
                there = ctypes.c_int32.from_address(packed_list + 4 * (first + place)).value
            for layer in range(layer_first, layer_first + layers):
                for part in range(layout.parts):
                    size = layout.piece_bytes(part)
                    at_device = (
                        device + part * v_start_words * word + (layer * pool_pages + page) * size
                    )
                    at_packed = (
                        packed + there * stride_words * word + layout.piece_offset(part, layer)
                    )
                    pair = (at_device, at_packed) if to_device else (at_packed, at_device)
                    ctypes.memmove(*pair, size)

    def _record(self, event: int, stream: int) -> None:
        self._points[event] = _Point()
        self._put(stream, _Work(None, self._points[event]))

    def _wait(self, stream: int, event: int, flags: int) -> None:
        self._put(stream, _Work(None, self._points.get(event), waits=True))

    def _await(self, event: int) -> None:
        point = self._points[event]
        while not point.reached:
            self._step()

    def _step(self) -> None:
        able = [stream for stream in self._streams.values() if stream and self._can(stream[0])]
        assert able, "every stream waits for another"
        work = self._random.choice(able).popleft()
        if work.act is not None:
            work.act()
        elif work.point is not None and not work.waits:
            work.point.reached = True

    def _can(self, work: _Work) -> bool:
        if not (work.waits and self.honours_waits):
            return True
        return work.point is None or work.point.reached

    def _elapsed(self, time_ms: ctypes._Pointer[ctypes.c_float], begin: int, end: int) -> None:
        assert {begin, end} <= self._timed
        assert self._points[begin].reached
        assert self._points[end].reached
        time_ms[0] = 0.25

    def _write(self, stream: int, address: int, value: int, flags: int) -> int | None:
        if self._words == "refuses":
            return NOT_SUPPORTED
        self._put(stream, _Work(None, _Word(address, value)))
        return None

    def _query(self, event: int) -> int | None:
        if self.lost is not None:
            return self.lost
        if any(self._streams.values()):
            self._step()
        return None if self._points[event].reached else NOT_READY
