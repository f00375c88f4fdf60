"""What the engine believes transfers and recomputing cost, learned only from completions it has
seen.

Each direction, and prefill, is a line `seconds = fixed + size * slope` over the last 32 samples:

* sizes hardly vary (spread <= max(1, 5 % of the largest)): fixed and slope cannot be told apart, so
  the slope stays at its prior and `fixed` follows the positive residual (EWMA, 0.2);
* else least squares with both terms >= 0.

Facts: mini-HiCache's online cost model. All sums are plain sequential Python floats, so that a
record made on one machine replays on another. The model refuses to look at a device: truth and
belief live apart.
"""

from __future__ import annotations

from hicache.operations import Direction
from hicache.options import RestoreOptions

WINDOW = 32
EWMA = 0.2
MIN_PREFILL_TOKENS = 16
SAFETY = 1.1  # a restore must beat recomputing by this factor
GIB = 1 << 30
UNLEARNED_LIMIT = 4096


class Line:
    """One learned line. `prior_slope` in seconds per unit of size.

    Samples are kept as they come and learned when somebody asks. While sizes vary, only the last
    window counts, so what nobody asked about costs nothing; while they do not, every sample is
    learned in order.
    """

    __slots__ = ("_fixed", "_slope", "_unlearned", "_window", "prior_slope", "seen")

    def __init__(self, prior_slope: float) -> None:
        self.prior_slope = prior_slope
        self.seen = 0
        self._fixed = 0.0
        self._slope = prior_slope
        self._window: list[tuple[float, float]] = []
        self._unlearned: list[tuple[float, float]] = []

    def observe(self, size: float, seconds: float) -> None:
        """Learn that `size` units took `seconds`."""
        self.seen += 1
        self._unlearned.append((size, seconds))
        if len(self._unlearned) >= UNLEARNED_LIMIT:
            self._learn()

    def estimate(self, size: float) -> float:
        """Seconds that `size` units are believed to take."""
        if self._unlearned:
            self._learn()
        return self._fixed + size * self._slope

    @property
    def fixed(self) -> float:
        """Believed seconds that do not depend on the size."""
        if self._unlearned:
            self._learn()
        return self._fixed

    @property
    def slope(self) -> float:
        """Believed seconds per unit of size."""
        if self._unlearned:
            self._learn()
        return self._slope

    def _learn(self) -> None:
        """Bring the line up to date with every sample seen.

        The line after a window of varied sizes follows from that window alone. So the work starts
        at the last sample whose window was varied, and goes on sample by sample from there.
        """
        samples = self._window + self._unlearned
        known = len(self._window)
        place = len(samples)
        while place > known and not _varied(samples[max(0, place - WINDOW) : place]):
            place -= 1
        if place > known:
            self._fit(samples[max(0, place - WINDOW) : place])
        for size, seconds in samples[place:]:
            self._slope = self.prior_slope
            residual = max(0.0, seconds - size * self.prior_slope)
            self._fixed = self._fixed * (1 - EWMA) + residual * EWMA
        self._window = samples[-WINDOW:]
        self._unlearned.clear()

    def _fit(self, samples: list[tuple[float, float]]) -> None:
        """Least squares with both terms >= 0."""
        count = len(samples)
        mean_size = mean_seconds = 0.0
        for size, seconds in samples:
            mean_size += size
            mean_seconds += seconds
        mean_size /= count
        mean_seconds /= count
        covariance = variance = 0.0
        for size, seconds in samples:
            off = size - mean_size
            covariance += off * (seconds - mean_seconds)
            variance += off * off
        slope = covariance / variance
        fixed = mean_seconds - slope * mean_size
        if slope < 0:
            fixed, slope = max(0.0, mean_seconds), 0.0
        elif fixed < 0:
            fixed = 0.0
            products = squares = 0.0
            for size, seconds in samples:
                products += size * seconds
                squares += size * size
            slope = products / squares
        self._fixed, self._slope = fixed, slope


def _varied(window: list[tuple[float, float]]) -> bool:
    """Whether the sizes differ by more than 1, and by more than 5 % of the largest."""
    smallest = largest = window[0][0]
    for size, _ in window:
        if size > largest:
            largest = size
        elif size < smallest:
            smallest = size
    return largest - smallest > max(1.0, largest * 0.05)


class CostModel:
    """Lines for the four directions (size in bytes) and for prefill (size in tokens).

    A sample is the recurring time of a completion (`Completion.recurring_ns`): enqueue, queue wait,
    service and notice, not one-off set-up. Whoever awaits the completion observes it. Prefill steps
    of fewer than `MIN_PREFILL_TOKENS` tokens say nothing of the slope and are left out.
    """

    def __init__(self, options: RestoreOptions, bytes_per_token: int) -> None:
        self.bytes_per_token = bytes_per_token
        host = 1.0 / (options.prior_host_gib_per_s * GIB)
        storage = 1.0 / (options.prior_storage_gib_per_s * GIB)
        self.prefill = Line(options.prior_recompute_us_per_token * 1e-6)
        self.copies: dict[Direction, Line] = {
            "d2h": Line(host), "h2d": Line(host), "h2s": Line(storage), "s2h": Line(storage),
        }  # fmt: skip

    def recompute_seconds(self, tokens: int) -> float:
        """Believed time to compute `tokens` prompt tokens."""
        return self.prefill.estimate(tokens)

    def transfer_seconds(self, direction: Direction, size_bytes: int) -> float:
        """Believed time of one copy."""
        return self.line(direction).estimate(size_bytes)

    def line(self, direction: Direction) -> Line:
        """What is believed of a direction. H2D without samples borrows what D2H has shown."""
        line = self.copies[direction]
        if direction == "h2d" and not line.seen:
            line = self.copies["d2h"]
        return line

    def benefit_seconds(self, tokens: int, directions: tuple[Direction, ...]) -> float:
        """Believed gain of restoring `tokens` tokens beyond the L1 hit instead of computing them.

        benefit = R(n) - 1.1 * sum T(n * bytes_per_token) over the copies it takes: ("h2d",) from
        L2, ("s2h", "h2d") from L3.
        """
        size_bytes = tokens * self.bytes_per_token
        transfer = 0.0
        for direction in directions:
            transfer += self.transfer_seconds(direction, size_bytes)
        return self.recompute_seconds(tokens) - SAFETY * transfer
