"""Faults that users reported of stores: each report as a run of the engine on a folder of real
files, with the counters that are right, and the same run with the fault put back, which must not
pass.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("torch")

import torch
from bench import Bench
from engine_runs import assert_at_rest

from hicache.operations import Copy, Lookup, Operation
from hicache.requests import Request
from hw.device import Control
from hw.pools import KvLayout
from hw.storage.host import HostBuffer
from hw.stores.device import store_devices
from hw.stores.dynamic import DynamicStore, Parts
from hw.stores.dynamic import _Laps as Laps  # pyright: ignore[reportPrivateUsage]
from hw.stores.names import Owner
from hw.stores.page_names import PageNames
from hw.stores.page_order import PageOrder, PageShape
from hw.stores.room import Room
from hw.stores.sglang_file import SglangFileStore
from hw.stores.staging import StagingPool

PAGE = 16
LAYOUT = KvLayout(
    layers=1, kv_heads=1, head_dim_k=4, head_dim_v=4, page_size_tokens=PAGE, dtype="bf16"
)
OWNER = Owner(model="m")
HOST_PAGES = 64
Prompt = Sequence[int]


@dataclass
class Server:
    """An engine whose L3 is a folder of SGLang's files. Prompts are token ids; each is asked for
    when all before it are over.
    """

    folder: Path
    limit_pages: int = 0
    prompts: list[Prompt] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bench = Bench(
            HOST_PAGES, HOST_PAGES, 10_000, page=PAGE, prefetch={"stop": "wait_complete"}
        )
        host = HostBuffer(HOST_PAGES, LAYOUT.page_bytes)
        self.store = self.opened(host)
        self.names = PageNames(PAGE, lambda request, upto: self.prompts[request.number])
        (self._device,) = store_devices(self.store, self.names.names, 1)
        self.most_files = 0
        self._keys: dict[tuple[int, ...], int] = {}
        lanes: Any = self.bench.lanes
        lanes._answer = self._answer

    def opened(self, host: HostBuffer) -> Any:
        """The store."""
        return SglangFileStore(
            self.folder, OWNER, PageOrder(PageShape.of(LAYOUT), "page_first"), host, workers=1,
            limit_bytes=self.limit_pages * LAYOUT.page_bytes,
        )  # fmt: skip

    def _answer(self, operation: Operation, steps: int) -> int:
        if not isinstance(operation, Copy | Lookup) or not operation.keys:
            return steps
        answer = self._device.run(operation, Control()).steps
        self.most_files = max(self.most_files, len(os.listdir(self.folder)))
        return answer

    def ask(self, *prompts: Prompt) -> list[dict[str, int]]:
        """The rows of these prompts. To be called once."""
        for prompt in prompts:
            ends = range(PAGE, len(prompt) + 1, PAGE)
            keys = [self._keys.setdefault(tuple(prompt[:end]), 2 * len(self._keys)) for end in ends]
            self.prompts.append(prompt)
            at_ns = 10_000 * len(self.prompts)
            number = self.bench.ask(at_ns, keys, tail=len(prompt) % PAGE)
            request: Request = self.bench.requests[number]
            self.names.learn(request)
        self.bench.run()
        assert_at_rest(self.bench.engine)
        self._device.close()
        return self.bench.rows()


# ---------------------------------------------------------------------- weak hash
# vllm#8229: of two prompts whose tokens differ, one took the other's pages, since a polynomial of
# base 31 gives both the same hash.

ONE = [*range(100, 116), 7]
OTHER = [*range(100, 102), 101, 134, *range(104, 116), 7]  # t[2] - 1, t[3] + 31


def polynomial(tokens: Prompt, page: int, prior: bytes = b"") -> list[bytes]:
    """What such a hash makes of pages: a chain all the same."""
    digests: list[bytes] = []
    for start in range(0, len(tokens) - page + 1, page):
        value = int.from_bytes(prior, "big")
        for token in tokens[start : start + page]:
            value = value * 31 + token
        prior = (value % (1 << 256)).to_bytes(32, "big")
        digests.append(prior)
    return digests


def taken_from_another(folder: Path) -> tuple[int, int]:
    """Tokens that a second server takes from L3 for the prompt that was stored, and for another."""
    Server(folder).ask(ONE)
    rows = Server(folder).ask(ONE), Server(folder).ask(OTHER)
    return rows[0][0]["storage_tokens"], rows[1][0]["storage_tokens"]


def test_vllm_8229_other_tokens_have_other_names(tmp_path: Path) -> None:
    assert taken_from_another(tmp_path) == (PAGE, 0)


def test_vllm_8229_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hw.stores.page_names.page_digests", polynomial)
    assert taken_from_another(tmp_path) == (PAGE, PAGE)


# ---------------------------------------------------------------------- seeded hash
# lmcache#1139: names were made with Python's `hash`, which another process seeds otherwise, so that
# nothing that one had stored was ever found by another.


def by_hash(tokens: Prompt, page: int, prior: bytes = b"") -> list[bytes]:
    """Names by Python's own hash of a text."""
    digests: list[bytes] = []
    for start in range(0, len(tokens) - page + 1, page):
        text = f"{prior.hex()} {list(tokens[start : start + page])}"
        prior = (hash(text) % (1 << 256)).to_bytes(32, "big")
        digests.append(prior)
    return digests


NAMES = ("as they are", "hash")


def in_a_process(folder: Path, seed: str) -> list[int]:
    """What a server in a process with this seed takes from a folder for each way of naming; it
    stores what it lacks. One process for both ways: most of it starts Python.
    """
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "from pathlib import Path\n"
        "import test_public_faults_stores as faults, hw.stores.page_names\n"
        "for names in faults.NAMES:\n"
        "    if names == 'hash': hw.stores.page_names.page_digests = faults.by_hash\n"
        f"    server = faults.Server(Path({str(folder)!r}) / names)\n"
        "    print(server.ask(faults.ONE)[0]['storage_tokens'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [int(each) for each in done.stdout.split()]


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int]]:
    """What the first process and then the second took, by how pages were named."""
    folder = tmp_path_factory.mktemp("named")
    for names in NAMES:
        (folder / names).mkdir()
    first, second = (in_a_process(folder, seed) for seed in ("0", "1"))
    return {names: pair for names, *pair in zip(NAMES, first, second, strict=True)}


@pytest.mark.parametrize(("names", "found"), list(zip(NAMES, (PAGE, 0), strict=True)))
def test_lmcache_1139_two_processes_name_pages_alike(
    taken: dict[str, list[int]], names: str, found: int
) -> None:
    """And do not with the fault put back ("hash")."""
    assert taken[names] == [0, found]


# ---------------------------------------------------------------------- disk without end
# sglang#26670, lmcache#4664: the folder grew until the disk was full; and a server that started
# again did not count what was there.

CAP, EACH = 100, 10


def prompts(count: int, first: int = 0) -> list[Prompt]:
    """Prompts of ten pages each."""
    return [[1000 * (first + n)] * (EACH * PAGE) for n in range(count)]


def fill_the_disk(folder: Path) -> tuple[int, int, int, int]:
    """1,000 pages are written below a cap of 100; the server starts again, and writes 50 more. The
    most files that there were, before and after; and what of the first and the last prompt was
    found by the second server.
    """
    first = Server(folder, CAP)
    first.ask(*prompts(100))
    assert first.store.written == 100 * EACH
    again = Server(folder, CAP)
    last, oldest, *_ = again.ask(*prompts(1, 99), *prompts(1), *prompts(4, 200))
    return first.most_files, again.most_files, last["storage_tokens"], oldest["storage_tokens"]


def assert_bounded(folder: Path) -> None:
    before, after, last, oldest = fill_the_disk(folder)
    assert before <= CAP + EACH, "over the cap and what is in flight"
    assert after <= CAP + EACH, "what was there at the restart is not counted"
    assert (last, oldest) == ((EACH - 1) * PAGE, 0), "not the oldest have left"


def test_sglang_26670_lmcache_4664_a_cap_holds_and_the_oldest_leave(tmp_path: Path) -> None:
    assert_bounded(tmp_path)


Put = Callable[[pytest.MonkeyPatch], None]


def no_eviction(patch: pytest.MonkeyPatch) -> None:
    """Everything is admitted."""
    patch.setattr(Room, "reserve", lambda self, name, size: True)


def no_count(patch: pytest.MonkeyPatch) -> None:
    """The book of a folder begins empty."""
    patch.setattr(Room, "_count_what_is_there", lambda self: None)


@pytest.mark.parametrize(("put", "said"), [(no_eviction, "over the cap"), (no_count, "restart")])
def test_sglang_26670_lmcache_4664_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, put: Put, said: str
) -> None:
    put(monkeypatch)
    with pytest.raises(AssertionError, match=said):
        assert_bounded(tmp_path)


# ---------------------------------------------------------------------- parts of a read
# sglang#21880, on real memory: which part of a read is slow, allocation, I/O or copies.

SLOW_S = 0.25  # far more than a busy machine adds to the other parts


class SlowStore:
    """A class of SGLang's interface, in a dict. `slow`: it sleeps in each read."""

    held: ClassVar[dict[str, bytes]] = {}
    slow = False

    def __init__(self, config: Any, kwargs: Any) -> None:
        """As SGLang makes it."""

    def batch_exists(self, keys: list[str]) -> int:
        return next((i for i, key in enumerate(keys) if key not in self.held), len(keys))

    def batch_get(self, keys: list[str], targets: list[Any]) -> list[Any]:
        if self.slow:
            time.sleep(SLOW_S)
        for key, target in zip(keys, targets, strict=True):
            target.view(torch.uint8)[:] = torch.frombuffer(
                bytearray(self.held[key]), dtype=torch.uint8
            )
        return targets

    def batch_set(self, keys: list[str], values: list[Any]) -> bool:
        for key, value in zip(keys, values, strict=True):
            self.held[key] = value.contiguous().view(torch.uint8).numpy().tobytes()
        return True


class ForeignServer(Server):
    """An engine whose L3 is that class."""

    def opened(self, host: HostBuffer) -> DynamicStore:
        return DynamicStore(__name__, "SlowStore", OWNER, LAYOUT, host)


def slow_part(folder: Path, patch: pytest.MonkeyPatch, part: str) -> str:
    """Which part of a read the store says took longest, where `part` sleeps."""
    patch.setattr(SlowStore, "held", {})
    ForeignServer(folder).ask(ONE)
    patch.setattr(SlowStore, "slow", part == "io_ns")
    methods = {"copy_ns": "put", "allocation_ns": "get_dummy_flat_data_page"}
    if part in methods:
        real = getattr(StagingPool, methods[part])

        def starved(*given: Any) -> Any:
            time.sleep(SLOW_S)
            return real(*given)

        patch.setattr(StagingPool, methods[part], starved)
    server = ForeignServer(folder)
    assert server.ask(ONE)[0]["storage_tokens"] == PAGE
    reading = server.store.reading
    spent = {name: getattr(reading, name) for name in Parts.__slots__}
    assert spent[part] >= SLOW_S * 1e9, "not where it was spent"
    return max(spent, key=spent.__getitem__)


@pytest.mark.parametrize("part", Parts.__slots__)
def test_sglang_21880_a_read_says_which_part_of_it_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    assert slow_part(tmp_path, monkeypatch, part) == part


def test_sglang_21880_parts_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it is called I/O."""
    end = Laps.end
    monkeypatch.setattr(Laps, "end", lambda self, part: end(self, "io_ns"))
    with pytest.raises(AssertionError, match="not where it was spent"):
        slow_part(tmp_path, monkeypatch, "copy_ns")
