"""Which sizes of L2 and L3 are worth a simulation, from hit curves and the machine's limits.

    hits                       L1        L2            L3
      |              ________________________________      sizes are where the curve has a part of
      |      _______/        all that can be hit           all hits beyond L1; what the machine or
      |_____/                                              the budget has no room for is refused
      +------|----------------------------------------- bytes

Tiers hold copies of each other, so together they hit what one LRU cache of the largest would
(docs/two-tiers.md): a pair is known by what its memory hits and what all of it hits. It refuses to
say how long anything takes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import floor, log10
from typing import NamedTuple

from hicache.errors import InputError
from scenario.sizes import BYTE_UNITS, Size, bytes_text, parse_size
from sim.curve_points import HitCurve

GIB = 1 << 30
# Of the hits beyond L1 that could be had at all.
PARTS = (0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
SIGNIFICANT = 2


class Pair(NamedTuple):
    """Bytes of L2 and of L3, of one rank."""

    l2_bytes: int
    l3_bytes: int


class Largest(NamedTuple):
    """Bytes of one rank's L2 and L3; None: no limit is known."""

    l2_bytes: int
    l3_bytes: int | None


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be used, for all ranks of a node together; None: no limit is known.

    `budget` is in the unit of the prices, which are for a GiB. `ranks`: GPUs of the node, each with
    an L2 of its own, of which `l3_ranks` (0: all) have an L3.
    """

    machine: str
    host_bytes: int
    host_fraction: float
    storage_bytes: int | None
    ranks: int
    price_l2: float
    price_l3: float
    budget: float | None
    l3_ranks: int = 0

    @property
    def storing(self) -> int:
        """Ranks that have an L3."""
        return self.l3_ranks or self.ranks

    def cost(self, pair: Pair) -> float:
        """Of a node's L2 and L3."""
        l2, l3 = self.ranks * pair.l2_bytes, self.storing * pair.l3_bytes
        return (l2 * self.price_l2 + l3 * self.price_l3) / GIB

    def refusal(self, pair: Pair, priced: str) -> str:
        """Why the pair cannot be, with the numbers; "" if it can."""
        for name, has, ranks, what in (
            ("L2", pair.l2_bytes, self.ranks, self._host),
            ("L3", pair.l3_bytes, self.storing, self._storage),
        ):
            most, said = what
            if most is not None and ranks * has > most:
                return (
                    f"{name} of {bytes_text(has)}{_times(ranks)} needs "
                    f"{bytes_text(ranks * has)}: {said}"
                )
        if self.budget is not None and self.cost(pair) > self.budget:
            return (
                f"L2 of {bytes_text(pair.l2_bytes)} and L3 of {bytes_text(pair.l3_bytes)}"
                f"{_times(self.ranks)} cost {self.cost(pair):,.6g} {priced}: the budget is "
                f"{self.budget:,.6g}"
            )
        return ""

    @property
    def _host(self) -> tuple[int | None, str]:
        most = int(self.host_bytes * self.host_fraction)
        return most, (
            f"{self.machine} has {bytes_text(self.host_bytes)} of host memory, of which "
            f"{self.host_fraction:g} may be used, {bytes_text(most)}"
        )

    @property
    def _storage(self) -> tuple[int | None, str]:
        if self.storage_bytes is None:
            return None, ""
        return self.storage_bytes, (
            f"{self.machine} has {bytes_text(self.storage_bytes)} of storage"
        )

    def largest(self) -> Largest:
        """The largest L2 and the largest L3 that fit, each without the other, rounded down to
        `SIGNIFICANT` digits.
        """
        host = int(self.host_bytes * self.host_fraction) // self.ranks
        if self.budget is not None and self.price_l2:
            host = min(host, int(self.budget / self.price_l2 * GIB / self.ranks))
        storage = [] if self.storage_bytes is None else [self.storage_bytes // self.storing]
        if self.budget is not None and self.price_l3:
            storage.append(int(self.budget / self.price_l3 * GIB / self.storing))
        return Largest(_rounded(host, 0), _rounded(min(storage), 0) if storage else None)


@dataclass(frozen=True, slots=True)
class Sizing:
    """A page size with its curve. `l1_pages`: what L1 has for a cache; `asked_tokens`: of all
    prompts.
    """

    page_size_tokens: int
    page_bytes: int
    l1_pages: int
    curve: HitCurve
    asked_tokens: int
    largest_request_pages: int

    def pages_for(self, tokens: float) -> int:
        """The least capacity that hits so many tokens, or all that can be hit."""
        return bisect_left(range(self.curve.last_capacity_pages), tokens, key=self.curve.tokens_at)

    def fast_tokens(self, pair: Pair) -> int:
        """What L1 and L2 hit together."""
        return self.curve.tokens_at(max(self.l1_pages, pair.l2_bytes // self.page_bytes))

    def all_tokens(self, pair: Pair) -> int:
        """What all tiers hit together."""
        return max(self.fast_tokens(pair), self.curve.tokens_at(pair.l3_bytes // self.page_bytes))


@dataclass(slots=True)
class Ladder:
    """Sizes to choose from, ascending, without 0; and what was refused, with the reason."""

    l2: list[int] = field(default_factory=list)
    l3: list[int] = field(default_factory=list)
    refused: list[dict[str, object]] = field(default_factory=list)

    def pairs(self) -> Iterator[Pair]:
        """All combinations that make sense: no L3 without an L2, none that is not larger."""
        yield Pair(0, 0)
        for l2 in self.l2:
            yield Pair(l2, 0)
            for l3 in self.l3:
                if l3 > l2:
                    yield Pair(l2, l3)


def ladder_of(
    sizing: Sizing, limits: Limits, given: Mapping[str, Sequence[int] | None], priced: str
) -> Ladder:
    """The sizes worth a look. `given`: "l2" and "l3" with sizes in bytes in place of the curve's,
    None where the curve says. Raises InputError where a size that was given does not fit.
    """
    ladder = Ladder()
    largest = limits.largest()
    for name, made, most in (
        ("l2", ladder.l2, largest.l2_bytes), ("l3", ladder.l3, largest.l3_bytes)
    ):  # fmt: skip
        wanted = given[name]
        for size in sorted(set(_steps(sizing, most) if wanted is None else wanted) - {0}):
            reason = limits.refusal(Pair(size, 0) if name == "l2" else Pair(0, size), priced)
            if not reason:
                made.append(size)
            elif wanted is not None:
                raise InputError(f"--{name}: {reason}")
            else:
                ladder.refused.append({"tier": name, "bytes": size, "reason": reason})
    if given["l2"] is None and ladder.l3:
        # An L2 that only serves as the way to L3: room for two of the largest requests.
        least = _rounded(2 * sizing.largest_request_pages * sizing.page_bytes, 1)
        if not limits.refusal(Pair(least, 0), priced) and least not in ladder.l2:
            ladder.l2.insert(0, least)
    ladder.l2.sort()
    ladder.l3.sort()
    return ladder


def worth_a_run(
    pairs: Sequence[Pair], sizing: Sizing, limits: Limits, tolerance: float
) -> tuple[list[Pair], int]:
    """Those of `pairs` that no cheaper one matches, and how many were left out: by the curve, one
    that costs no more hits as much, in L1 and L2 and in all, but for `tolerance` of the prompts.
    """
    margin = tolerance * sizing.asked_tokens
    kept: list[tuple[Pair, int, int]] = []
    for pair in sorted(pairs, key=lambda each: (limits.cost(each), each)):
        fast, total = sizing.fast_tokens(pair), sizing.all_tokens(pair)
        # Of an L2 no larger than L1 the curve says that it hits nothing; a replay finds a little.
        small = not pair.l3_bytes and 0 < pair.l2_bytes <= sizing.l1_pages * sizing.page_bytes
        if small or not any(f >= fast - margin and t >= total - margin for _, f, t in kept):
            kept.append((pair, fast, total))
    return [pair for pair, *_ in kept], len(pairs) - len(kept)


def _steps(sizing: Sizing, most_bytes: int | None) -> Iterator[int]:
    """Bytes at which the curve has parts of the hits beyond L1 that `most_bytes` can have, rounded
    up; and what all hits would take.
    """
    curve, page_bytes = sizing.curve, sizing.page_bytes
    have, ceiling = curve.pages_at(sizing.l1_pages), curve.hit_pages[-1]
    if ceiling <= have:
        return
    yield _rounded(curve.last_capacity_pages * page_bytes, 1)
    reach = ceiling if most_bytes is None else curve.pages_at(most_bytes // page_bytes)
    for part in PARTS:
        if reach > have:
            pages = curve.capacity_for(have + max(1, round(part * (reach - have))))
            size = _rounded(pages * page_bytes, 1)
            yield size if most_bytes is None else min(size, most_bytes)


def _times(ranks: int) -> str:
    return f" x {ranks} ranks" if ranks > 1 else ""


def _rounded(size_bytes: int, up: int) -> int:
    """`size_bytes` in GiB with `SIGNIFICANT` digits, rounded up (1) or down (0)."""
    if size_bytes <= 0:
        return 0
    step_gib = 10.0 ** (floor(log10(size_bytes / GIB)) + 1 - SIGNIFICANT)
    steps = floor(size_bytes / GIB / step_gib + 1e-9)
    if up and steps * step_gib * GIB < size_bytes * (1 - 1e-12):
        steps += 1
    return size_of(f"{steps * step_gib:.12g}GiB")


def size_of(text: str, option: str = "size") -> int:
    """Bytes of "40GiB". Raises InputError."""
    size = parse_size(text, option)
    if size.is_zero:
        return 0
    if size.unit not in BYTE_UNITS:
        raise InputError(f"{option} is {text}: it must be bytes, such as 40GiB")
    return size.digits * BYTE_UNITS[size.unit] // 10**size.decimals


def size_or_multiple(text: str, option: str) -> int | Size:
    """Bytes of "40GiB", or the multiple of L1 that "2x" is. Raises InputError."""
    size = parse_size(text, option)
    if size.unit == "x":
        return size
    if not size.is_zero and size.unit not in BYTE_UNITS:
        raise InputError(
            f"{option} is {text}: it must be bytes, such as 40GiB, or a multiple of L1, such as 2x"
        )
    return size_of(text, option)


def size_text(size_bytes: int) -> str:
    """The shortest text of a size: `40GiB`, in bytes where that is not exact."""
    if not size_bytes:
        return "0"
    gib = f"{size_bytes / GIB:.6g}"
    if "e" not in gib and size_of(f"{gib}GiB") == size_bytes:
        return f"{gib}GiB"
    return str(Size(size_bytes, "B"))
