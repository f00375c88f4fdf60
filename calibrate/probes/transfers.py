"""Copies between L1 and L2, as a run makes them: every back-end, each way, runs and scattered.

    pcie.copy.*        one plain copy of pinned memory, and the wait for it: the link's own curve
    pcie.BACKEND.*     `TransferDevice.run` of a whole operation: pages in one run, no two beside
                       each other, or (held out) in a few runs
    pcie.*.*.*.PAGE    the same in pages of another size than the calibration's, in tokens
    pcie.*.both        each of two threads copies its own way, from its own half of the pools

`direct` copies a run page by page while it has fewer pages than the model has layers, and layer by
layer from there: what it takes bends or steps there, so both sides are measured. A thorough
calibration visits each point several times, each time with other lists of scattered pages.

A sample is the blocking call on the host's clock. A back-end that this machine cannot do is missing
with its reason.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import product
from typing import TYPE_CHECKING

from calibrate.points import NO_FLOOR, VISITS, Described, Effort, Floor, Point
from hicache.errors import InputError
from hicache.operations import Copy, PageRuns

if TYPE_CHECKING:
    from calibrate.probes.bench import Bench
    from hw.transfers.auto import Auto
    from hw.transfers.backend import TransferBackend

BACKENDS = ("auto", "staged", "zero_copy", "direct")
WAYS = ("h2d", "d2h")
KINDS = ("run", "scattered")
BY_LAYER = ("auto", "direct")  # what copies long runs layer by layer, or may
# 4 KiB .. 256 MiB, and one more: what is pinned as one piece is less than 1 GiB.
PLAIN = (*(4096 * 4**power for power in range(9)), 768 << 20)
PLAIN_CHECKS = (150_000, 3 << 20, 40 << 20, 300 << 20)
BOTH_ROUNDS = 3
MIB = 1 << 20
BYTES_PER_S = 25e9  # for the time that a point wants


class TransfersProbe:
    """See `calibrate.points.Probe`."""

    name = "transfers"

    def __init__(
        self,
        bench: Bench,
        link_bytes_per_s: float = 0.0,
        backends: tuple[str, ...] = BACKENDS,
        other_pages: tuple[int, ...] = (),
    ) -> None:
        """`link_bytes_per_s`: what the link can carry one way; 0: not known. `other_pages`: sizes
        of pages, in tokens, that back-ends are timed with besides the bench's own.
        """
        self._bench = bench
        self._link = link_bytes_per_s
        self._names = backends
        self._other_pages = other_pages
        # By name and tokens of a page.
        self._backends: dict[tuple[str, int], tuple[TransferBackend | Auto, ...]] = {}

    def describe(self) -> dict[str, Described]:
        axes, page = ("bytes",), self._bench.page_size_tokens
        series = {
            f"pcie.copy.{way}": Described(axes, f"one copy of pinned memory, {way}")
            for way in (*WAYS, "both")
        }
        for name in self._names:
            for way in WAYS:
                series[f"pcie.{name}.{way}.run"] = Described(
                    axes, f"an operation of back-end {name}, {way}, consecutive pages"
                )
                series[f"pcie.{name}.{way}.scattered"] = Described(
                    axes, f"the same in scattered pages of {page} tokens"
                )
                series[f"pcie.{name}.{way}.pieces"] = Described(
                    (*axes, "pieces"), "the same in pieces that are not neighbours"
                )
                for tokens in self._other_pages:
                    for kind, pages in (("run", "consecutive"), ("scattered", "scattered")):
                        series[f"pcie.{name}.{way}.{kind}.{tokens}"] = Described(
                            axes, f"an operation of back-end {name}, {way}, {pages} pages of "
                            f"{tokens} tokens",
                        )  # fmt: skip
            series[f"pcie.{name}.both"] = Described(
                axes, f"one each way at once by back-end {name}, scattered pages; bytes each way"
            )
        return series

    def points(self, effort: Effort) -> list[Point]:
        scale, page_bytes = self._bench.scale, self._bench.layout.page_bytes
        pages = scale.device_tokens // self._bench.page_size_tokens
        room = min(scale.host_bytes, pages * page_bytes) // 2
        points: list[Point] = []
        for way in WAYS:
            points += [_point(f"pcie.copy.{way}", size, "fit") for size in PLAIN if size <= room]
            points += [
                _point(f"pcie.copy.{way}", size, "check") for size in PLAIN_CHECKS if size <= room
            ]
        most = max(1, room // page_bytes)
        if effort == "quick":
            most = min(most, max(1, (1 << 30) // page_bytes))
        both = max(1, min(most, (256 << 20) // page_bytes)) * page_bytes
        points.append(_point("pcie.copy.both", both, "fit"))
        fits = sorted({*_powers(most), most})
        checks = sorted({round((a * b) ** 0.5) for a, b in zip(fits, fits[1:])} - set(fits))  # noqa: B905, RUF007
        for name in self._names:
            for way in WAYS:
                for kind in KINDS:
                    key = f"pcie.{name}.{way}.{kind}"
                    both_sides = self._both_sides(name, kind, most)
                    points += [
                        _point(key, count * page_bytes, "fit")
                        for count in sorted({*fits, *both_sides})
                    ]
                    points += [
                        _point(key, count * page_bytes, "check")
                        for count in checks
                        if count not in both_sides
                    ]
                points += [
                    Point(f"pcie.{name}.{way}.pieces", (count * page_bytes, pieces), "check", 0.2)
                    for count, pieces in _fragments(fits)
                ]
            points.append(_point(f"pcie.{name}.both", both, "fit"))
        points += self._in_other_pages()
        return [each._replace(visits=VISITS[effort]) for each in points]

    def _in_other_pages(self) -> list[Point]:
        """Fewer sizes: one page, each fourth power from a MiB on, and the most."""
        points: list[Point] = []
        for tokens in self._other_pages:
            page_bytes = self._bench.layout_of(tokens).page_bytes
            most = max(1, self._bench.scale.host_bytes // 4 // page_bytes)
            fits = sorted({1, most, *(each for each in _powers(most)[::2]
                                      if each * page_bytes >= MIB)})  # fmt: skip
            checks = [round((a * b) ** 0.5) for a, b in zip(fits, fits[1:])][1::2]  # noqa: B905, RUF007
            for name, way, kind in product(self._names, WAYS, KINDS):
                key = f"pcie.{name}.{way}.{kind}.{tokens}"
                mine = {*fits, *self._both_sides(name, kind, most)}
                points += [_point(key, count * page_bytes, "fit") for count in sorted(mine)]
                points += [
                    _point(key, count * page_bytes, "check") for count in sorted(set(checks) - mine)
                ]
        return points

    def _both_sides(self, name: str, kind: str, most: int) -> tuple[int, ...]:
        """Pages of the longest run that goes page by page, and of the shortest by layers."""
        layers = self._bench.layout.layers
        if name not in BY_LAYER or kind != "run" or layers > most:
            return ()
        return tuple(each for each in (layers - 1, layers) if each)

    def open(self) -> None:
        _ = self._bench.host, self._bench.pool

    def floor(self, point: Point) -> Floor:
        """The bytes at the link's rate."""
        if not self._link:
            return NO_FLOOR
        return Floor(point.at[0] * 1e9 / self._link, "the link can carry the bytes")

    def sampler(self, point: Point) -> Callable[[], int]:
        _, name, way, *kind = point.series.split(".")
        size = point.at[0]
        if way == "both":
            return self._both(name, size)
        if name == "copy":
            return self._plain(way, size, 0)
        tokens = int(kind[1]) if len(kind) > 1 else self._bench.page_size_tokens
        lists = (
            self._pieces(*point.at) if kind[0] == "pieces" else self._lists(size, kind[0], tokens)
        )
        return self._operation(name, way, lists, size, tokens)

    def close(self) -> None:
        """Close the back-ends; the pools are the bench's."""
        for pair in self._backends.values():
            for backend in pair:
                backend.close()
        self._backends.clear()

    def _lists(self, size_bytes: int, kind: str, tokens: int = 0) -> tuple[PageRuns, PageRuns]:
        """Pages of L1, and as many of L2, of so many tokens each; 0: the bench's own."""
        bench = self._bench
        tokens = tokens or bench.page_size_tokens
        count = size_bytes // bench.layout_of(tokens).page_bytes
        if kind == "run":
            return ((0, count),), ((0, count),)
        pool, host = bench.pools(tokens)
        return bench.pages(pool, count), bench.pages(host, count)

    def _pieces(self, size_bytes: int, pieces: int) -> tuple[PageRuns, PageRuns]:
        """As many pages of each, in runs of the same length."""
        bench = self._bench
        length = size_bytes // bench.layout.page_bytes // pieces
        lists: list[PageRuns] = []
        for pool in (bench.pool, bench.host):
            cells = bench.random.permutation(pool.pages // (length + 1))[:pieces]
            if len(cells) < pieces:
                raise InputError(f"{pieces} pieces of {length} pages are more than the pools have")
            lists.append(tuple((int(cell) * (length + 1), length) for cell in cells))
        return lists[0], lists[1]

    def _backend(self, name: str, way: str, tokens: int) -> TransferBackend | Auto:
        """One for each way, as two threads need them."""
        if (name, tokens) not in self._backends:
            self._backends[name, tokens] = self._make(name, tokens)
        return self._backends[name, tokens][WAYS.index(way)]

    def _make(self, name: str, tokens: int) -> tuple[TransferBackend | Auto, ...]:
        from hw.transfers.auto import Auto, Traffic, make_backend

        bench = self._bench
        traffic = Traffic()
        pool, host = bench.pools(tokens)
        first = make_backend(name, pool, host, bench.driver, traffic=traffic)
        table = first.table if isinstance(first, Auto) else None
        second = make_backend(name, pool, host, bench.driver, traffic=traffic, table=table)
        return first, second

    def _operation(
        self, name: str, way: str, lists: tuple[PageRuns, PageRuns], size: int, tokens: int
    ) -> Callable[[], int]:
        from hicache.allocator import extents
        from hw.device import Control
        from hw.transfers.device import TransferDevice

        source, target = lists if way == "d2h" else lists[::-1]
        pages = size // self._bench.layout_of(tokens).page_bytes
        direction = "d2h" if way == "d2h" else "h2d"
        operation = Copy(direction, pages, size, extents(source, target), source, target)
        device = TransferDevice(self._backend(name, way, tokens), direction)

        def act() -> int:
            begun_ns = time.monotonic_ns()
            timing = device.run(operation, Control())
            return time.monotonic_ns() - begun_ns - timing.setup_ns

        return act

    def _plain(self, way: str, size: int, offset: int) -> Callable[[], int]:
        from hw.transfers.queues import make_queue

        bench = self._bench
        queue = make_queue(bench.where, bench.driver)
        device, host = bench.pool.address + offset, bench.host.address + offset
        if offset + size > min(bench.pool.data.nbytes, bench.host.pages * bench.host.page_bytes):
            raise InputError(f"{size} bytes are more than the pools have")
        bench.host.pin(0, bench.host.pages)
        target, source = (device, host) if way == "h2d" else (host, device)

        def act() -> int:
            begun_ns = time.monotonic_ns()
            queue.copy(target, source, size)
            queue.mark().synchronize()
            return time.monotonic_ns() - begun_ns

        return act

    def _both(self, name: str, size: int) -> Callable[[], int]:
        """Two threads, one a way, that do the same number of copies; ns for one copy each way."""
        bench = self._bench
        acts: list[Callable[[], int]] = []
        for place, way in enumerate(WAYS):
            if name == "copy":
                pages = min(bench.pool.pages, bench.host.pages) // 2
                acts.append(self._plain(way, size, place * pages * bench.layout.page_bytes))
            else:
                lists = self._half_lists(size, place)
                acts.append(self._operation(name, way, lists, size, bench.page_size_tokens))
        for act in acts:
            act()

        def both() -> int:
            threads = [
                threading.Thread(target=lambda act=act: [act() for _ in range(BOTH_ROUNDS)])
                for act in acts
            ]
            begun_ns = time.monotonic_ns()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return (time.monotonic_ns() - begun_ns) // BOTH_ROUNDS

        return both

    def _half_lists(self, size_bytes: int, half: int) -> tuple[PageRuns, PageRuns]:
        """Scattered pages of one half of each pool: the ways must not meet."""
        bench = self._bench
        count = size_bytes // bench.layout.page_bytes
        lists: list[PageRuns] = []
        for pool in (bench.pool, bench.host):
            pages = pool.pages // 2
            step = max(1, min(2, pages // count))
            chosen = bench.random.permutation(pages // step)[:count] * step + half * pages
            lists.append(tuple((int(page), 1) for page in chosen))
        return lists[0], lists[1]


def _powers(most: int) -> list[int]:
    counts = [1]
    while counts[-1] * 2 <= most:
        counts.append(counts[-1] * 2)
    return counts


def _fragments(counts: list[int]) -> list[tuple[int, int]]:
    """(pages, pieces) between one run and all pages apart, of a middle and a large operation."""
    large, middle = (max((each for each in counts if each <= most), default=1)
                     for most in (counts[-1] // 2, counts[-1] // 8))  # fmt: skip
    return sorted({(large, large // 8), (large, large // 2), (middle, middle // 4)} -
                  {(count, pieces) for count in counts for pieces in (0, 1)})  # fmt: skip


def _point(series: str, size: int, role: str) -> Point:
    weight = max(0.06, 8 * size / BYTES_PER_S) * (4 if series.endswith("both") else 1)
    return Point(series, (size,), "check" if role == "check" else "fit", weight)
