"""Transport: GPUDirect Storage through kvikio, for machines that have it.

Where the memory region lies on the GPU (a pool of pages there, instead of pinned host memory), the
disk writes into it without a stop in host memory; for host memory, and where cuFile does not run on
the file system, kvikio itself reads with threads, and says so in `describe`. kvikio is no
dependency of this project: without it this back-end is an InputError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from hicache.errors import InputError
from hw.storage.plan import Request, Requests
from hw.storage.slot_file import SlotFile


class GdsTransport:
    """Moves bytes between a file and one region of GPU or host memory."""

    fence_bytes = 1 << 62
    last_bytes = 0

    def __init__(self, file: SlotFile, region: Any, workers: int) -> None:
        """`region`: a memoryview, or an array of bytes on the GPU; slices of it are passed on."""
        try:
            import kvikio  # pyright: ignore[reportMissingImports]
            import kvikio.defaults  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise InputError(
                f"the back-end gds needs kvikio, which cannot be imported here ({error}); install "
                f"kvikio-cu12 or kvikio-cu13, or choose another back-end"
            ) from error
        self._file = file
        self._region = region
        self.at_once = workers
        kvikio.defaults.set("num_threads", workers)
        mode = kvikio.defaults.get("compat_mode")
        self._compatibility = getattr(mode, "name", mode)
        try:
            self._handle = kvikio.CuFile(file.path, "r+")
        except (OSError, RuntimeError) as error:
            raise InputError(f"{file.path}: kvikio cannot open it: {error}") from error

    def describe(self) -> str:
        """For people."""
        return f"kvikio, {self.at_once} threads, compatibility mode {self._compatibility}"

    def read(self, parts: Iterable[Requests]) -> None:
        """File -> memory. Raises TransferError when nothing is under way any more."""
        self._move("reading", self._handle.pread, parts)

    def write(self, parts: Iterable[Requests]) -> None:
        """Memory -> file. Raises TransferError when nothing is under way any more."""
        self._move("writing", self._handle.pwrite, parts)

    def close(self) -> None:
        """Deregister the file."""
        self._handle.close()

    def _move(self, verb: str, act: Callable[..., Any], parts: Iterable[Requests]) -> None:
        started: list[tuple[Request, Any]] = []
        first: Exception | None = None
        for request in (Request(*row) for part in parts for row in part.tolist()):
            part = self._region[request.memory : request.memory + request.size]
            try:
                future = act(part, request.size, request.position)
            except (OSError, RuntimeError) as error:
                first = self._file.failure(verb, request.position, str(error))
                break
            started.append((request, future))
        for request, future in started:
            try:
                done = future.get()
            except (OSError, RuntimeError) as error:
                done, why = -1, str(error)
            else:
                why = f"{done} bytes instead of {request.size}"
            if done != request.size and first is None:
                first = self._file.failure(verb, request.position, why)
        if first is not None:
            raise first
