"""A machine whose truth is a few numbers, behind probes that answer without measuring anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from unittest import mock

from by_hand import H200_BY_HAND

from calibrate.build import Built, Told, build_profile
from calibrate.gpu_fit import Graphs
from calibrate.journal import Journal
from calibrate.points import NO_FLOOR, Described, Floor, Point
from calibrate.sampling import Rule
from calibrate.session import Measured, Session
from scenario.geometry import load_geometry
from scenario.measurement import Measurement
from scenario.profile import load_profile

MIB = 1 << 20
PAGE_BYTES = 9 * MIB
GRAPHS = Graphs((16, 64, 256, 1024), (1, 2, 4, 8, 16))
GEOMETRY = load_geometry("Qwen3-8B")
BASE = load_profile(H200_BY_HAND)
# The config.json of a model that a CPU can interpret.
CONFIG = {
    "model_type": "qwen3", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 61,
    "max_position_embeddings": 4096, "tie_word_embeddings": False, "torch_dtype": "float32",
}  # fmt: skip
NEWS = (1, 16, 64, 256, 1024, 2048, 4096, 8192)


@dataclass
class Truth:
    """Of one machine; times in ns, rates in bytes/s."""

    gpu: float = 1.0
    link: float = 50e9
    launch_ns: float = 20_000.0
    piece_ns: float = 4_000.0
    read: float = 2e9
    write: float = 1.5e9
    first_write: float = 1.2e9
    seek_ns: float = 80_000.0
    memory: float = 8e9
    engine_ns: float = 150_000.0
    fixed_prefill_ns: float = 8e6

    def size(self, new: int) -> int:
        """Of the graph, or the step itself."""
        return next((each for each in GRAPHS.prefill_tokens if new <= each), new)

    def prefill(self, new: int, past: int) -> float:
        return self.joint(1, new, past)

    def joint(self, count: int, new: int, past: int) -> float:
        # A graph's padding is a step's, not each chunk's.
        each = self.size(new) if count == 1 else new
        all_of_them = self.size(count * new)
        pairs = count * each * (past + each / 2)
        return self.gpu * (self.fixed_prefill_ns + all_of_them * 25_000 + pairs * 0.9)

    def decode(self, batch: int, context: int) -> float:
        size = next(each for each in GRAPHS.decoders if batch <= each)
        return self.gpu * (7e6 + size * 30_000 + batch * context * 40)

    def copy(self, size: int) -> float:
        return self.launch_ns + size * 1e9 / self.link

    def scattered(self, size: int) -> float:
        return self.copy(size) + (size / PAGE_BYTES - 1) * self.piece_ns

    def pieces(self, size: int, pieces: int) -> float:
        return self.copy(size) + (pieces - 1) * self.piece_ns

    def both(self, size: int) -> float:
        return self.copy(size) / 0.9

    def disk(self, rate: float) -> Callable[..., float]:
        def took(size: int, pieces: int, at_once: int) -> float:
            return self.seek_ns + at_once * size * 1e9 / rate

        return took

    def mixed(self, rate: float) -> Callable[..., float]:
        return lambda size, pieces, at_once: self.seek_ns + 2.2 * size * 1e9 / rate

    def memcpy(self, threads: int, size: int) -> float:
        return size * 1e9 / (self.memory * min(threads, 4))


def series_of(truth: Truth) -> dict[str, tuple[Callable[..., float], list[tuple[int, ...]]]]:
    """By series: what a point takes, and the points, those held out after a None."""
    pages = [(count * PAGE_BYTES,) for count in (1, 4, 16, 64)]
    held = [(count * PAGE_BYTES,) for count in (2, 8, 32)]
    past = [(new, past) for new in NEWS for past in (0, 1024, 8192, 65_536)]
    dense = [(1025, 0), (1536, 0), (3072, 0), (6144, 0)]
    steps: list[tuple[int, ...]] = [*past, *dense]
    found: dict[str, tuple[Callable[..., float], list[tuple[int, ...]]]] = {
        "steps.prefill": (truth.prefill, [*steps, (), (40, 0), (300, 3000), (700, 20_000),
                                          (3000, 4000)]),
        "steps.joint": (truth.joint, [(), (2, 500, 0), (4, 200, 2000)]),
        "steps.decode": (truth.decode, [
            *((batch, context) for batch in (1, 2, 4, 8, 16) for context in (128, 2048, 16_384)),
            (), (3, 1000), (12, 4000),
        ]),
        "steps.burst": (lambda batch: 120_000.0, [(1,), (8,)]),
        "disk.read": (truth.disk(truth.read), _disk_points()),
        "disk.write": (truth.disk(truth.write), _disk_points()),
        "disk.read_mixed": (truth.mixed(truth.read), [(8 * PAGE_BYTES, 1, 1)]),
        "disk.write_mixed": (truth.mixed(truth.write), [(8 * PAGE_BYTES, 1, 1)]),
        "disk.first_write": (truth.disk(truth.first_write), [
            (PAGE_BYTES, 1, 1), (16 * PAGE_BYTES, 1, 1),
        ]),
        "host.copy": (truth.memcpy, [(threads, 64 * MIB) for threads in (1, 2, 4, 8)]),
        "pcie.copy.both": (truth.both, [(256 * MIB,)]),
    }  # fmt: skip
    for kind in ("prefill", "burst", "d2h", "h2d", "h2s", "s2h"):
        found[f"engine.{kind}"] = (lambda: truth.engine_ns, [()])
        found[f"engine.{kind}"][1].clear()
        found[f"engine.{kind}"][1].append((0,))
    plain = [(4096 * 4**power,) for power in range(10)]
    for way in ("h2d", "d2h"):
        found[f"pcie.copy.{way}"] = (truth.copy, [*plain, (), (3 * MIB,), (40 * MIB,)])
        for name in ("auto", "staged", "zero_copy", "direct"):
            found[f"pcie.{name}.{way}.run"] = (truth.copy, [*pages, (), *held])
            found[f"pcie.{name}.{way}.scattered"] = (truth.scattered, [*pages, (), *held])
            found[f"pcie.{name}.{way}.pieces"] = (truth.pieces, [
                (), (16 * PAGE_BYTES, 4), (64 * PAGE_BYTES, 8),
            ])  # fmt: skip
            found[f"pcie.{name}.both"] = (truth.both, [(64 * PAGE_BYTES,)])
    return found


def _disk_points() -> list[tuple[int, ...]]:
    one = [(count * PAGE_BYTES, 1, 1) for count in (1, 4, 16)]
    apart = [(count * PAGE_BYTES, count, 1) for count in (4, 16)]
    at_once = [(4 * PAGE_BYTES, 1, n) for n in (2, 4)]
    return [*one, *apart, *at_once, (), (8 * PAGE_BYTES, 8, 1), (6 * PAGE_BYTES, 2, 1)]


class StubProbe:
    """Answers for one part of the machine. `noise`: how far repetitions lie apart."""

    def __init__(self, name: str, truth: Truth, prefixes: tuple[str, ...], noise: float = 0.004):
        self.name = name
        self._series = {
            key: value for key, value in series_of(truth).items() if key.startswith(prefixes)
        }
        self._noise = noise
        self.calls = 0
        self.fails_after = -1

    def describe(self):
        return {key: Described(("x",), f"made up: {key}") for key in self._series}

    def points(self, effort):
        made = []
        for key, (_, places) in self._series.items():
            role = "fit"
            for at in places:
                if not at:
                    role = "check"
                else:
                    made.append(Point(key, at, role, 0.1))
        return made

    def open(self):
        pass

    def sampler(self, point):
        of, _ = self._series[point.series]

        def act() -> int:
            self.calls += 1
            if self.calls == self.fails_after:
                raise KeyboardInterrupt
            ns = of() if point.series.startswith("engine.") else of(*point.at)
            return round(ns * (1 + self._noise * ((self.calls % 5) - 2) / 2))

        return act

    def floor(self, point) -> Floor:
        return NO_FLOOR

    def close(self):
        pass


class Silent:
    """Progress for nobody."""

    def begin(self, points): ...
    def probe(self, name, points): ...
    def point(self, point, left_s): ...
    def done(self, points): ...
    def missing(self, what, reason): ...


def probes_of(truth: Truth) -> list[StubProbe]:
    """All of a machine."""
    return [
        StubProbe("steps", truth, ("steps.",)),
        StubProbe("engine", truth, ("engine.",)),
        StubProbe("transfers", truth, ("pcie.",)),
        StubProbe("disk", truth, ("disk.",)),
        StubProbe("host", truth, ("host.",)),
    ]


def measure(probes, journal_path: str) -> Measured:
    """One session over `probes`; its journal stays."""
    times = iter(range(10_000_000))
    journal = Journal(journal_path, {"machine": "stub"})
    try:
        with mock.patch("calibrate.journal.os.fsync"):  # no disk is waited for
            return Session(
                probes, journal, Silent(), effort="quick", budget_s=1e9,
                clock=lambda: next(times) / 1e4, rule=Rule(0, 5, 20, 0.03),
            ).run()  # fmt: skip
    finally:
        journal.close()


def built_of(measured: Measured) -> Built:
    """The profile of what a session found."""
    told = Told("stub", "a stub", "none", "2026-01-01", "a test")
    measurement = Measurement(command="test", began="now", duration_s=1, facts={})
    return build_profile(measured, told, BASE, GEOMETRY, measurement, BASE.memory, GRAPHS)
