"""The few CUDA driver calls that PyTorch does not offer, through ctypes: pinning memory that is
already there, and copies given by address, one by one, by rows with a pitch, or as one batch.

A thread that calls the driver needs the device's context to be current: every method sees to that.
Refuses to own memory or streams (PyTorch and `hw.pinned` do), and to be imported where there is no
driver: `Driver(...)` raises InputError then.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Literal

import numpy as np

from hicache.errors import InputError, TransferError

Direction = Literal["d2h", "h2d"]

_PORTABLE_AND_MAPPED = 1 | 2  # CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP
_MAX_PITCH = 11  # CU_DEVICE_ATTRIBUTE_MAX_PITCH
_HOST, _DEVICE = 1, 2  # CU_MEMORYTYPE_*
# After one of these the context is lost: no operation will ever work again.
_FATAL = frozenset((214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719))


class _Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D of cuda.h."""

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


class Driver:
    """The CUDA driver, for device `ordinal`."""

    def __init__(self, ordinal: int = 0) -> None:
        """Raises InputError where there is no driver or no such device."""
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise InputError(f"no CUDA driver on this machine ({error})") from None
        self._threads = threading.local()
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
        self._batch, self._batch_has_fail_index = self._find_batch()

    @property
    def copies_batches(self) -> bool:
        """Whether the driver has cuMemcpyBatchAsync (12.8 and later)."""
        return self._batch is not None

    def register(self, address: int, size_bytes: int) -> None:
        """Pin memory and map it for the device, at the same address. Raises InputError."""
        self._enter()
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
        self._enter()
        self._call("cuMemHostUnregister", ctypes.c_void_p(address))

    def copy(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        """Enqueue one copy. Addresses are the host's and the device's alike."""
        self._enter()
        self._call(
            "cuMemcpyAsync",
            ctypes.c_uint64(target),
            ctypes.c_uint64(source),
            ctypes.c_size_t(size_bytes),
            ctypes.c_void_p(stream),
        )

    def copy_rows(
        self,
        direction: Direction,
        device: tuple[int, int],
        host: tuple[int, int],
        width_bytes: int,
        height: int,
        stream: int,
    ) -> None:
        """Enqueue `height` rows of `width_bytes`. `device` and `host` are (address, pitch)."""
        self._enter()
        ask = _Copy2D(width=width_bytes, height=height)
        if direction == "h2d":
            ask.source_kind, ask.source_host, ask.source_pitch = _HOST, *host
            ask.target_kind, ask.target_device, ask.target_pitch = _DEVICE, *device
        else:
            ask.source_kind, ask.source_device, ask.source_pitch = _DEVICE, *device
            ask.target_kind, ask.target_host, ask.target_pitch = _HOST, *host
        self._call("cuMemcpy2DAsync_v2", ctypes.byref(ask), ctypes.c_void_p(stream))

    def copy_batch(
        self, targets: np.ndarray, sources: np.ndarray, sizes: np.ndarray, stream: int
    ) -> None:
        """Enqueue many copies, in no order among themselves.

        Three uint64 arrays of one length. Raises InputError where the driver has no such call.
        """
        if self._batch is None:
            raise InputError("this CUDA driver copies no batches (12.8 and later do)")
        self._enter()
        attributes = _Attributes(order=1)
        first = ctypes.c_size_t(0)
        failed = ctypes.c_size_t(0)
        arguments: list[object] = [
            ctypes.c_void_p(targets.ctypes.data),
            ctypes.c_void_p(sources.ctypes.data),
            ctypes.c_void_p(sizes.ctypes.data),
            ctypes.c_size_t(len(targets)),
            ctypes.byref(attributes),
            ctypes.byref(first),
            ctypes.c_size_t(1),
        ]
        if self._batch_has_fail_index:
            arguments.append(ctypes.byref(failed))
        self._call(self._batch, *arguments, ctypes.c_void_p(stream))

    def _find_batch(self) -> tuple[str | None, bool]:
        """The batch call's name, and whether it takes the index of a failure (before 13.0)."""
        for name, has_fail_index in (
            ("cuMemcpyBatchAsync_v2", False),
            ("cuMemcpyBatchAsync", True),
        ):
            if hasattr(self._library, name):
                return name, has_fail_index
        return None, False

    def _enter(self) -> None:
        if not getattr(self._threads, "entered", False):
            self._call("cuCtxSetCurrent", self._context)
            self._threads.entered = True

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text))
            message = f"{name}: {(text.value or b'error').decode()} ({code})"
            if code in _FATAL:
                raise RuntimeError(message)
            raise TransferError(message)
