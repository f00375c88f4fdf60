"""Matrix products that leave multiprocessors to others: to the kernel of a load that runs beside.

    all 132    |product ........|          a kernel holds two: two programs of the product begin
               |kernel|product ........|   when the first have ended, and it takes twice as long
    all but 4  |product .........|
               |kernel|kernel|kernel|

cuBLAS's large products have one program for each multiprocessor, which stays to the end. With four
fewer of an H200's 132, steps of Qwen3-8B alone took 0.6 % longer at most. Refuses to choose how
many: who loads knows.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch


@contextmanager
def leaving(count: int) -> Iterator[None]:
    """Products that this thread launches or captures inside leave `count` multiprocessors of the
    current device; 0: none, as where there is no cuBLAS to be told. Raises RuntimeError if it
    refuses.
    """
    if not count or _cublas() is None:
        yield
        return
    device = torch.cuda.current_device()
    there = torch.cuda.get_device_properties(device).multi_processor_count
    _plan_for(max(1, there - count))
    try:
        yield
    finally:
        _plan_for(0)  # as many as there are


@cache
def _cublas() -> ctypes.CDLL | None:
    """PyTorch's own, which has a handle for each thread and device. None is said, once."""
    name = f"libcublas.so.{str(torch.version.cuda).split('.', maxsplit=1)[0]}"
    try:
        library = ctypes.CDLL(name)
        _ = library.cublasSetSmCountTarget  # later than cuBLAS itself
    except (OSError, AttributeError) as error:
        print(f"products leave no multiprocessors to loads: {name} ({error})", file=sys.stderr)
        return None
    return library


def _plan_for(multiprocessors: int) -> None:
    library = _cublas()
    assert library is not None
    handle = ctypes.c_void_p(torch.cuda.current_blas_handle())
    code = library.cublasSetSmCountTarget(handle, ctypes.c_int(multiprocessors))
    if code:
        raise RuntimeError(f"cublasSetSmCountTarget({multiprocessors}): cuBLAS status {code}")
