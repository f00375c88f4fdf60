"""The L3 read bandwidth at which reading a prefix takes as long as computing it again.

For each request, the tokens that only L3 holds (n of them behind p that L1 and L2 have):

    computing    T(prompt - p after p) - T(prompt - p - n after p + n)       steps of the profile
    reading      engine + latency + n bytes / bandwidth, then their copy to L1

Equal at one bandwidth; over all requests, at (sum of bytes) / (sum of computing - sum of the rest
of reading). The machine is idle but for the request: with a GPU that is never idle, reading also
frees it for others, and the simulations of the plan count that. It refuses to guess what a disk
does: it asks the profile what such reads take.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from simpy import Environment

from hicache.operations import Chunk, Copy, Direction, Prefill
from scenario.geometry import ModelGeometry
from scenario.profile import Profile
from scenario.ranks import rank_geometry
from scenario.records import Scenario
from sim.lanes import SimMachine
from traces.reuse import HitRuns


@dataclass(frozen=True, slots=True)
class Reads:
    """What only L3 holds, a number for each request that has any: pages in L1 and L2 before them,
    pages of L3, and tokens of the prompt.
    """

    fast_pages: Sequence[int]
    pages: Sequence[int]
    prompt_tokens: Sequence[int]


def reads_beyond(
    runs: HitRuns, prompt_tokens: Sequence[int], fast_pages: int, all_pages: int | None
) -> Reads:
    """What L3 has that a cache of `fast_pages` has not; of `all_pages`, None: of any size."""
    fast, deep = (
        array("q", bytes(8 * len(prompt_tokens))),
        array("q", bytes(8 * len(prompt_tokens))),
    )
    for first, end, asker in zip(runs.first_places, runs.end_places, runs.askers, strict=True):
        near = min(max(fast_pages + 1 - first, 0), end - first)
        far = end - first if all_pages is None else min(max(all_pages + 1 - first, 0), end - first)
        fast[asker] += near
        deep[asker] += max(0, far - near)
    asked = [number for number, pages in enumerate(deep) if pages]
    return Reads(
        [fast[each] for each in asked], [deep[each] for each in asked],
        [prompt_tokens[each] for each in asked],
    )  # fmt: skip


def break_even(
    reads: Reads, scenario: Scenario, profile: Profile, geometry: ModelGeometry
) -> dict[str, Any] | None:
    """The bandwidth in bytes a second over all reads, its spread over requests, and what the
    machine's disk does with the very same reads. None where L3 has nothing to read.

    `bytes_per_s` is None where computing is faster whatever the disk: the copy to L1 and the
    engine take longer already.
    """
    if not reads.pages:
        return None
    times = _Times(scenario, profile, geometry)
    size_bytes = total_ns = rest_ns = disk_ns = 0
    pays_tokens = 0
    single: list[float] = []
    page = scenario.tiers.page_size_tokens
    for computing, rest, disk, size in times.of(reads):
        size_bytes += size
        total_ns += computing
        rest_ns += rest
        disk_ns += disk
        left = computing - rest
        single.append(size / left * 1e9 if left > 0 else float("inf"))
        if disk + rest - times.fixed_ns < computing:
            pays_tokens += size // times.read_bytes
    tokens = sum(reads.pages) * page
    left_ns = total_ns - rest_ns
    single.sort()
    return {
        "bytes_per_s": size_bytes / left_ns * 1e9 if left_ns > 0 else None,
        "of_requests_bytes_per_s": {
            f"p{part}": _finite(single[min(len(single) - 1, len(single) * part // 100)])
            for part in (10, 50, 90)
        },
        "machine_bytes_per_s": size_bytes / disk_ns * 1e9,
        "pays_share_of_tokens": pays_tokens / tokens,
        "requests": len(reads.pages),
        "tokens": tokens,
        "bytes": size_bytes,
        "computing_s": total_ns / 1e9,
        "reading_s": (rest_ns + disk_ns - times.fixed_ns * len(reads.pages)) / 1e9,
    }


class _Times:
    """What the parts of computing and reading take on an idle machine."""

    def __init__(self, scenario: Scenario, profile: Profile, geometry: ModelGeometry) -> None:
        self._page = scenario.tiers.page_size_tokens
        self._chunk = scenario.scheduler.chunk_tokens
        # Of one rank, and of all: each reads its own part of a token.
        self.token_bytes = rank_geometry(geometry, scenario.ranks).kv_bytes_per_token
        self.read_bytes = self.token_bytes * scenario.ranks.tp
        self.fixed_ns = profile.disk.read_latency_ns.value + profile.host.engine.s2h_ns.value
        self._env = Environment(0)
        machine = SimMachine(
            self._env, profile, geometry, transfer_mode=scenario.machine.transfer_mode,
            backend=scenario.hw.transfers, ranks=scenario.ranks.tp,
            writing_ranks=scenario.ranks.writing_ranks(geometry),
        )  # fmt: skip
        self._steps, self._lanes = machine.steps, machine.lanes()
        self._step_ns = profile.host.engine.step_ns.value
        self._copy_ns = cache(self._copied)

    def of(self, reads: Reads) -> Iterator[tuple[int, int, int, int]]:
        """For each read: ns of computing; of reading without the disk's bandwidth; of the whole
        disk operation; and its bytes.
        """
        columns = zip(reads.fast_pages, reads.pages, reads.prompt_tokens, strict=True)
        for fast, pages, prompt in columns:
            before, behind = fast * self._page, (fast + pages) * self._page
            # A hit leaves the last token to compute.
            behind = min(behind, prompt - 1)
            computing = self._prefill_ns(before, prompt) - self._prefill_ns(behind, prompt)
            size = pages * self._page * self.read_bytes
            rest = self.fixed_ns + self._copy_ns("h2d", pages)
            yield computing, rest, self._copy_ns("s2h", pages), size

    def _prefill_ns(self, past: int, prompt: int) -> int:
        total = 0
        while past < prompt:
            new = min(self._chunk, prompt - past)
            step = Prefill((Chunk(0, new, past),), new)
            total += self._steps.prefill_ns(step) + self._step_ns
            past += new
        return total

    def _copied(self, direction: Direction, pages: int) -> int:
        size_bytes = pages * self._page * self.token_bytes
        pending = self._lanes.submit(Copy(direction, pages, size_bytes, 1))
        self._env.run()  # until nothing is left to do: the machine is idle again
        completion: Any = pending.value
        return completion.finished_ns - completion.submitted_ns


def _finite(value: float) -> float | None:
    return value if value < float("inf") else None
