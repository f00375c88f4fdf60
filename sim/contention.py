"""What copies and GPU steps do to each other, where a profile knows: parts of their own speed.

    a copy's speed    while a prefill, while a decode burst goes on        h2d and d2h
    a step's speed    while a copy to, while a copy from the host goes on  prefill and decode

The link and the GPU each know when the other's work begins, and go on at the speed that holds from
then on until it ends (`sim.pcie`, `sim.gpu`); what is left of an operation keeps its size. Only
numbers stand here. What both directions take of a step is taken as the product of what each takes:
nobody measured that.
"""

from __future__ import annotations

from typing import Final

from scenario.profile import Interference

PERMILLE: Final = 1000
# What the GPU does.
IDLE: Final = 0
PREFILL: Final = 1
DECODE: Final = 2


class Contention:
    """Thousandths of its own speed that each side keeps."""

    __slots__ = ("_steps", "d2h", "h2d")

    def __init__(self, parts: Interference) -> None:
        # A copy's, by what the GPU does.
        self.h2d = (
            PERMILLE, parts.h2d_under_prefill_permille.value, parts.h2d_under_decode_permille.value,
        )  # fmt: skip
        self.d2h = (
            PERMILLE, parts.d2h_under_prefill_permille.value, parts.d2h_under_decode_permille.value,
        )  # fmt: skip
        # A step's, by what it is: under copies of (neither way, h2d, d2h, both).
        self._steps: tuple[tuple[int, ...], ...] = (
            (PERMILLE, PERMILLE, PERMILLE, PERMILLE),
            _under(parts.prefill_under_h2d_permille.value, parts.prefill_under_d2h_permille.value),
            _under(parts.decode_under_h2d_permille.value, parts.decode_under_d2h_permille.value),
        )

    def step_speed(self, step: int, beside_h2d: int, beside_d2h: int) -> int:
        """Of a step, beside so many copies of each direction (0 or 1)."""
        return self._steps[step][beside_h2d + 2 * beside_d2h]


def _under(h2d: int, d2h: int) -> tuple[int, int, int, int]:
    return (PERMILLE, h2d, d2h, max(1, h2d * d2h // PERMILLE))
