"""Triton without a GPU: the same kernels, run by Triton's interpreter on CPU tensors.

Which of the two it is holds for a process, from Triton's import on: the environment variable
TRITON_INTERPRET says so, or else whether the machine has a GPU (`hw/__init__.py`). The interpreter
keeps its place in Triton's own module, so that kernels run one at a time; on a GPU nobody waits.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

from hicache.errors import InputError
from hw.transfers.kernels import INTERPRETER

_AT_ONCE: AbstractContextManager[object] = nullcontext()


def launching(device: torch.device) -> AbstractContextManager[object]:
    """To be held while kernels are launched on tensors of `device`."""
    return INTERPRETER if device.type == "cpu" else _AT_ONCE


def check_device(device: torch.device) -> None:
    """Raises InputError where kernels would not run on `device`."""
    interprets = isinstance(tl.zeros, InterpretedFunction)
    if device.type == "cpu" and not interprets:
        raise InputError(
            "device cpu: Triton was imported to compile kernels; set TRITON_INTERPRET=1 before "
            "Python starts, or import hw before torch"
        )
    if device.type != "cpu" and interprets:
        raise InputError(f"device {device}: unset TRITON_INTERPRET, its kernels must be compiled")
