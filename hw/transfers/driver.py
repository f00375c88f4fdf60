"""The few CUDA driver calls that PyTorch does not offer, through ctypes: pinning memory that is
already there, and copies given by address, one by one, by rows with a pitch, or as one batch.

A thread that calls the driver needs the device's context to be current: every method sees to that.
A call of a microsecond or two keeps the interpreter's lock: to win it back from busy threads takes
far longer. What takes longer, or comes many times in a row, lets go of it: the model's thread must
not wait until all of a load is enqueued.
Refuses to own memory or streams (PyTorch and `hw.pinned` do), and to be imported where there is no
driver: `Driver(...)` raises InputError then.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any, Literal, NoReturn

from hicache.errors import InputError, TransferError

Direction = Literal["d2h", "h2d"]

_PORTABLE_AND_MAPPED = 1 | 2  # CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP
_DISABLE_TIMING = 2  # CU_EVENT_DISABLE_TIMING
_MAX_PITCH = 11  # CU_DEVICE_ATTRIBUTE_MAX_PITCH
_NOT_READY = 600  # CUDA_ERROR_NOT_READY
_HOST, _DEVICE = 1, 2  # CU_MEMORYTYPE_*
# After one of these the context is lost: no operation will ever work again.
_FATAL = frozenset((214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719))


class RowCopy(ctypes.Structure):
    """CUDA_MEMCPY2D of cuda.h. It is read when it is enqueued."""

    _fields_ = (
        ("source_x", ctypes.c_size_t),
        ("source_y", ctypes.c_size_t),
        ("source_kind", ctypes.c_uint),
        ("source_host", ctypes.c_void_p),
        ("source_device", ctypes.c_uint64),
        ("source_array", ctypes.c_void_p),
        ("source_pitch", ctypes.c_size_t),
        ("target_x", ctypes.c_size_t),
        ("target_y", ctypes.c_size_t),
        ("target_kind", ctypes.c_uint),
        ("target_host", ctypes.c_void_p),
        ("target_device", ctypes.c_uint64),
        ("target_array", ctypes.c_void_p),
        ("target_pitch", ctypes.c_size_t),
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    )


class _Location(ctypes.Structure):
    """CUmemLocation: 1 is a device, 2 the host; ignored for memory that is not managed."""

    _fields_ = (("kind", ctypes.c_int), ("number", ctypes.c_int))


class _Attributes(ctypes.Structure):
    """CUmemcpyAttributes. `order` 1: the source is read in stream order."""

    _fields_ = (
        ("order", ctypes.c_int),
        ("source", _Location),
        ("target", _Location),
        ("flags", ctypes.c_uint),
    )


_IN_ORDER = _Attributes(order=1)
_FIRST = ctypes.c_size_t(0)


class Driver:
    """The CUDA driver, for device `ordinal`."""

    def __init__(self, ordinal: int = 0) -> None:
        """Raises InputError where there is no driver or no such device."""
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise InputError(f"no CUDA driver on this machine ({error})") from None
        self._threads = threading.local()
        self._bind(ctypes.PyDLL("libcuda.so.1"))
        self._context = ctypes.c_void_p()
        device = ctypes.c_int()
        try:
            self._call("cuInit", ctypes.c_uint(0))
            self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(ordinal))
            # The context that PyTorch uses, too.
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)
        except TransferError as error:
            raise InputError(f"no CUDA device {ordinal} on this machine ({error})") from None
        pitch = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(pitch), ctypes.c_int(_MAX_PITCH), device)
        self.max_pitch_bytes = pitch.value

    @property
    def copies_batches(self) -> bool:
        """Whether the driver has cuMemcpyBatchAsync (12.8 and later)."""
        return self._batch is not None

    def register(self, address: int, size_bytes: int) -> None:
        """Pin memory and map it for the device, at the same address. Raises InputError."""
        self.enter()
        try:
            self._call(
                "cuMemHostRegister_v2",
                ctypes.c_void_p(address),
                ctypes.c_size_t(size_bytes),
                ctypes.c_uint(_PORTABLE_AND_MAPPED),
            )
        except TransferError as error:
            raise InputError(f"the driver would not pin {size_bytes} bytes: {error}") from None
        seen = ctypes.c_uint64()
        self._call(
            "cuMemHostGetDevicePointer_v2",
            ctypes.byref(seen),
            ctypes.c_void_p(address),
            ctypes.c_uint(0),
        )
        if seen.value != address:
            self.unregister(address)
            raise InputError("this device maps pinned memory at other addresses than the host")

    def unregister(self, address: int) -> None:
        """Undo `register`."""
        self.enter()
        self._call("cuMemHostUnregister", ctypes.c_void_p(address))

    def copy(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        """Enqueue one copy. Addresses are the host's and the device's alike."""
        self.enter()
        code = self._copy(target, source, size_bytes, stream)
        if code:
            self.refuse("cuMemcpyAsync", code)

    def rows(
        self,
        direction: Direction,
        pitches: tuple[int, int],
        width_bytes: int,
        height: int,
    ) -> RowCopy:
        """`height` rows of `width_bytes`, to be copied from anywhere to anywhere. `pitches`: the
        device's and the host's.
        """
        ask = RowCopy(width=width_bytes, height=height)
        if direction == "h2d":
            ask.source_kind, ask.target_kind = _HOST, _DEVICE
            ask.target_pitch, ask.source_pitch = pitches
        else:
            ask.source_kind, ask.target_kind = _DEVICE, _HOST
            ask.source_pitch, ask.target_pitch = pitches
        return ask

    def copy_rows(
        self, direction: Direction, rows: RowCopy, device: int, host: int, stream: int
    ) -> None:
        """Enqueue the copy of rows that begin at these addresses."""
        self.enter()
        if direction == "h2d":
            rows.source_host, rows.target_device = host, device
        else:
            rows.source_device, rows.target_host = device, host
        code = self._copy_rows(ctypes.byref(rows), stream)
        if code:
            self.refuse("cuMemcpy2DAsync_v2", code)

    def copy_batch(self, targets: int, sources: int, sizes: int, count: int, stream: int) -> None:
        """Enqueue many copies, in no order among themselves.

        Addresses of three uint64 arrays of `count`. Raises InputError where the driver has no such
        call.
        """
        if self._batch is None:
            raise InputError("this CUDA driver copies no batches (12.8 and later do)")
        self.enter()
        # The same attributes for all, from the first copy on.
        attributes, first = ctypes.byref(_IN_ORDER), ctypes.byref(_FIRST)
        arguments = [targets, sources, sizes, count, attributes, first, 1]
        if self.batch_has_fail_index:
            arguments.append(ctypes.byref(ctypes.c_size_t(0)))
        code = self._copy_batch(*arguments, stream)
        if code:
            self.refuse(self._batch, code)

    def launch(
        self, function: int, programs: int, threads: int, shared_bytes: int, stream: int,
        arguments: ctypes.Array[ctypes.c_void_p],
    ) -> None:  # fmt: skip
        """Launch a kernel. arguments: the address of each argument; they are read at once."""
        self.enter()
        code = self._launch(
            function, programs, 1, 1, threads, 1, 1, shared_bytes, stream, arguments, None
        )
        if code:
            self.refuse("cuLaunchKernel", code)

    def is_idle(self, stream: int) -> bool:
        """Whether a stream has done all it was given."""
        self.enter()
        code = self._query(stream)
        if code not in (0, _NOT_READY):
            self.refuse("cuStreamQuery", code)
        return not code

    def make_event(self, *, timed: bool = True) -> int:
        """A new event, that takes times or only waits for work. It lasts as long as the process."""
        self.enter()
        made = ctypes.c_void_p()
        flags = ctypes.c_uint(0 if timed else _DISABLE_TIMING)
        self._call("cuEventCreate", ctypes.byref(made), flags)
        assert made.value is not None
        return made.value

    def record(self, event: int, stream: int) -> None:
        """Let an event happen at this point of a stream."""
        self.enter()
        code = self._record(event, stream)
        if code:
            self.refuse("cuEventRecord", code)

    def elapsed_ns(self, begin: int, end: int) -> int:
        """Block until `end` has happened; the device's time between the two."""
        self.enter()
        code = self._await(end)
        if code:
            self.refuse("cuEventSynchronize", code)
        time_ms = ctypes.c_float()
        code = self._elapsed(ctypes.byref(time_ms), begin, end)
        if code:
            self.refuse(self._elapsed_name, code)
        return round(time_ms.value * 1e6)

    def address_of(self, call: str) -> int | None:
        """Where a call is that a front makes (`hw.transfers.front_native.CALLS`), in the version
        that this driver has; None where it has none.
        """
        versions = {
            "cuMemcpyBatchAsync": self._batch,
            "cuEventElapsedTime": self._elapsed_name,
            "cuStreamWriteValue32": "cuStreamWriteValue32_v2",
        }
        name = versions.get(call, call)
        if name is None or not hasattr(self._library, name):
            return None
        return ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value

    def _bind(self, locked: ctypes.PyDLL) -> None:
        """The calls that are made often, with their arguments' types; `locked`: the same library,
        called with the interpreter's lock held.
        """
        address, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint

        def bound(library: ctypes.CDLL, name: str, *types: Any) -> Callable[..., int]:
            function = getattr(library, name)
            function.argtypes = types
            return function

        self._copy = bound(locked, "cuMemcpyAsync", address, address, size, address)
        self._copy_rows = bound(locked, "cuMemcpy2DAsync_v2", address, address)
        self._launch = bound(
            self._library, "cuLaunchKernel", address, *[number] * 7, address, address, address
        )
        self._query = bound(locked, "cuStreamQuery", address)
        self._record = bound(locked, "cuEventRecord", address, address)
        self._await = bound(self._library, "cuEventSynchronize", address)
        names = ("cuEventElapsedTime_v2", "cuEventElapsedTime")
        self._elapsed_name = next(name for name in names if hasattr(locked, name))
        self._elapsed = bound(locked, self._elapsed_name, address, address, address)
        self._batch, self.batch_has_fail_index = self._find_batch()
        if self._batch is not None:
            lists = [address, address, address, size, address, address, size]
            lists += [address] if self.batch_has_fail_index else []
            self._copy_batch = bound(self._library, self._batch, *lists, address)

    def _find_batch(self) -> tuple[str | None, bool]:
        """The batch call's name, and whether it takes the index of a failure (before 13.0)."""
        for name, has_fail_index in (
            ("cuMemcpyBatchAsync_v2", False),
            ("cuMemcpyBatchAsync", True),
        ):
            if hasattr(self._library, name):
                return name, has_fail_index
        return None, False

    def enter(self) -> None:
        """Make the device's context current in this thread."""
        if not getattr(self._threads, "entered", False):
            self._call("cuCtxSetCurrent", self._context)
            self._threads.entered = True

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            self.refuse(name, code)

    def refuse(self, name: str, code: int) -> NoReturn:
        """Raise what the failed call `name` means: RuntimeError if the device is lost."""
        text = ctypes.c_char_p()
        self._library.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text))
        message = f"{name}: {(text.value or b'error').decode()} ({code})"
        if code in _FATAL:
            raise RuntimeError(message)
        raise TransferError(message)
