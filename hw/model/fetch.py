"""One small kernel that reads a step's numbers where the host laid them: in pinned memory.

A GPU has one engine for copies from the host, first come first served. What a step sends by it
waits behind a load that was begun before: on an H200 steps that were submitted together with a load
began when it had ended, 18 to 52 ms later. A kernel's reads share the link with a load instead.

Refuses to know what the numbers are.
"""

# No `from __future__ import annotations`: Triton reads the annotations themselves.
# pyright: reportOperatorIssue=false
# In a kernel numbers, constants and tensors mix as Triton's compiler lets them.
# ruff: noqa: N803  # what a kernel is compiled for is written in capitals, as Triton's users do
from typing import Any

import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

from hw.transfers.kernels import INTERPRETER

BLOCK = 1024
PROGRAMS = 8  # for each span
ALIGN = 32  # numbers: spans begin at multiples of 128 bytes


def _fetch(
    host_address,  # int: where the host's numbers begin
    device_address,  # int: where the device's do
    spans,  # int: place, in the host's, of (start, length) of each span
    BLOCK: tl.constexpr,
    ALIGN: tl.constexpr,
):
    host = tl.cast(host_address, tl.int64).to(tl.pointer_type(tl.int32))
    device = tl.cast(device_address, tl.int64).to(tl.pointer_type(tl.int32))
    host = tl.multiple_of(host, 16)
    device = tl.multiple_of(device, 16)
    span = host + spans + 2 * tl.program_id(0)
    start = tl.multiple_of(tl.load(span), ALIGN)
    length = tl.load(span + 1)
    for first in range(tl.program_id(1) * BLOCK, length, tl.num_programs(1) * BLOCK):
        at = first + tl.arange(0, BLOCK)
        inside = at < length
        tl.store(device + start + at, tl.load(host + start + at, mask=inside), mask=inside)


_RUNTIME = ["host_address", "device_address", "spans"]
_compiled: Any = triton.jit(do_not_specialize=_RUNTIME, do_not_specialize_on_alignment=_RUNTIME)(
    _fetch
)
_interpreted: Any = InterpretedFunction(_fetch)


def fetch(host: torch.Tensor, device: torch.Tensor, spans: int, count: int) -> None:
    """Copy `count` spans of int32 numbers from `host`, pinned, to the same places of `device`, in
    order of the current stream. At host[spans] lie start and length of each; starts are multiples
    of ALIGN. Both tensors are of shape (n,), aligned to 16 bytes.
    """
    arguments = (host.data_ptr(), device.data_ptr(), spans)
    if device.device.type == "cuda":
        _compiled[(count, PROGRAMS)](*arguments, BLOCK=BLOCK, ALIGN=ALIGN)
        return
    with INTERPRETER:
        _interpreted[(count, PROGRAMS)](*arguments, BLOCK=BLOCK, ALIGN=ALIGN)
