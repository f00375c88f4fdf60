"""What copies and GPU steps do to each other: each timed alone, and while the other goes on.

    interference.copy.*      an operation of the back-end: alone, under prefills, under decode
    interference.prefill.*   a prefill step: alone, under copies from the host, to the host
    interference.decode.*    a decode step: likewise

What goes on in the background is repeated by another thread, as a run's workers do it, so that the
interpreter's share is in it, too. The parts are fitted together: a copy's speed under a step, and a
step's under copies, against the same operation alone in the same minute.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from calibrate.points import NO_FLOOR, Described, Effort, Floor, Point
from calibrate.probes.background import going_on
from calibrate.probes.steps import StepsProbe
from calibrate.probes.transfers import TransfersProbe

if TYPE_CHECKING:
    from calibrate.probes.bench import Bench

COPIED_BYTES = 256 << 20
PREFILL_TOKENS = 2048
DECODE = (16, 2048)
BACKEND = "direct"
HOW = {
    "alone": "nothing else runs",
    "prefill": "prefills follow each other",
    "decode": "decode bursts follow each other",
    "h2d": "copies from the host follow each other",
    "d2h": "copies to the host follow each other",
}
SERIES = (
    *(("copy_h2d", under) for under in ("alone", "prefill", "decode")),
    *(("copy_d2h", under) for under in ("alone", "prefill", "decode")),
    *(("prefill", under) for under in ("alone", "h2d", "d2h")),
    *(("decode", under) for under in ("alone", "h2d", "d2h")),
)


class InterferenceProbe:
    """See `calibrate.points.Probe`."""

    name = "interference"

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._steps = StepsProbe(bench)
        self._copies = TransfersProbe(bench, backends=(BACKEND,))

    def describe(self) -> dict[str, Described]:
        return {
            f"interference.{what}.{under}": Described(
                (), f"{what.replace('_', ' ')} while {HOW[under]}"
            )
            for what, under in SERIES
        }

    def points(self, effort: Effort) -> list[Point]:
        return [Point(f"interference.{what}.{under}", (), "fit", 0.8) for what, under in SERIES]

    def open(self) -> None:
        self._steps.open()
        self._copies.open()

    def floor(self, point: Point) -> Floor:
        return NO_FLOOR

    def sampler(self, point: Point) -> Callable[[], int]:
        _, what, under = point.series.split(".")
        act = self._act(what)
        if under == "alone":
            return act
        other = self._beside(under)

        def beside() -> int:
            with going_on(other):
                return act()

        return beside

    def close(self) -> None:
        self._copies.close()

    def _beside(self, under: str) -> Callable[[], int]:
        """What is repeated in the background: prefills alone there, no decode between them."""
        if under == "prefill":
            return self._steps.in_a_row(min(PREFILL_TOKENS, self._bench.scale.chunk_tokens))
        return self._act(f"copy_{under}" if under in ("h2d", "d2h") else under)

    def _act(self, what: str) -> Callable[[], int]:
        scale = self._bench.scale
        if what == "prefill":
            tokens = min(PREFILL_TOKENS, scale.chunk_tokens)
            return self._steps.sampler(Point("steps.prefill", (tokens, 0)))
        if what == "decode":
            at = (min(DECODE[0], scale.batch), min(DECODE[1], scale.context_tokens // 2))
            return self._steps.sampler(Point("steps.decode", at))
        page_bytes = self._bench.layout.page_bytes
        pages = min(self._bench.host.pages, self._bench.pool.pages) // 4
        count = max(1, min(COPIED_BYTES // page_bytes, pages))
        way = what.removeprefix("copy_")
        series = f"pcie.{BACKEND}.{way}.scattered"
        return self._copies.sampler(Point(series, (count * page_bytes,)))
