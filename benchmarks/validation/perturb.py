"""How far two runs of a scenario may lie apart: simulations of machines that differ by a little.

    python benchmarks/validation/perturb.py                    all nine
    python benchmarks/validation/perturb.py shared-l3 --set trace.speed=0.9

No two runs on hardware take the same times, and no profile has them exactly. Each scenario is
simulated, its pages named as in a run, with prefills, copies over the link and the engine's own
times off by what `NUDGES` says: down, as it is and up, in all combinations; then with the writes to
L3 off, alone. Each line has the largest change of TTFT and throughput found, in percent, and of
prompt tokens that came from another tier than usual: by request (`moved`), and of a tier's share of
all (`points`).
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from disk import SOURCES, TTFT, as_a_run

from hicache.errors import HiCacheError
from scenario.load import parse_assignments
from scenario.profile import Curve, Profile, Quantity, Surface, dump_profile, load_profile
from scenario.records import Scenario
from sim.replay import Outcome, replay

HERE = Path(__file__).resolve().parent
# Part of the profile: by how much it may be off, and is in all combinations with the others.
NUDGES = {"prefill": 0.01, "link": 0.03, "engine": 0.10}
WRITES = 0.15


@dataclass(frozen=True, slots=True)
class Spread:
    """The largest changes found; ratios less one, tokens as parts of all prompt tokens."""

    ttft: dict[str, float]
    throughput: float
    moved: float
    share: float


def slower(profile: Profile, factors: Mapping[str, float]) -> Profile:
    """`profile` with the times of its parts multiplied: those of `NUDGES`, and `writes`."""
    parts: dict[str, Any] = {}
    for name, by in factors.items():
        match name:
            case "prefill":
                parts["gpu"] = _scaled(profile.gpu, by, ("dense", "attention_prefill"))
            case "link":
                parts["pcie"] = _scaled(profile.pcie, by)
            case "engine":
                engine = _scaled(profile.host.engine, by)
                parts["host"] = msgspec.structs.replace(profile.host, engine=engine)
            case _:
                assert name == "writes"
                parts["disk"] = _scaled(profile.disk, by, ("write_bytes_per_s", "write_latency_ns"))
    return msgspec.structs.replace(profile, **parts)


def _scaled(part: Any, by: float, names: tuple[str, ...] = ()) -> Any:
    """A part of a profile with all its times, or those of `names`, multiplied; rates divided."""
    fields: dict[str, Any] = {}
    for name in names or part.__struct_fields__:
        value = getattr(part, name)
        factor = 1 / by if name.endswith("per_s") else by
        if isinstance(value, Curve | Surface):
            points = tuple((*at, max(1, round(last * factor))) for *at, last in value.points)
            fields[name] = msgspec.structs.replace(value, points=points)
        elif isinstance(value, Quantity) and name.endswith(("_ns", "per_s")):
            fields[name] = msgspec.structs.replace(value, value=max(1, round(value.value * factor)))
        elif isinstance(value, msgspec.Struct) and not isinstance(value, Quantity):
            fields[name] = _scaled(value, by)
    return msgspec.structs.replace(part, **fields)


def simulated(scenario: Scenario, factors: Mapping[str, float]) -> Outcome:
    """A simulation with those times multiplied. Raises HiCacheError."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "profile.json"
        file.write_text(dump_profile(slower(load_profile(scenario.machine.profile), factors)))
        machine = msgspec.structs.replace(scenario.machine, profile=str(file))
        return replay(msgspec.structs.replace(scenario, machine=machine))


def combinations() -> Iterator[dict[str, float]]:
    """Every one of `NUDGES` down, as it is and up, but for all as they are."""
    for signs in itertools.product((-1, 0, 1), repeat=len(NUDGES)):
        if any(signs):
            yield {
                name: 1 + sign * size
                for (name, size), sign in zip(NUDGES.items(), signs, strict=True)
            }


def spread(scenario: Scenario, changes: list[dict[str, float]]) -> Spread:
    """What changes most over `changes`. Raises HiCacheError."""
    usual = simulated(scenario, {})
    found = [simulated(scenario, factors) for factors in changes]
    prompts = usual.summary["prompt_tokens"]
    sources = [("cached_tokens_total", tier) for tier in SOURCES]

    def largest(*keys: str) -> float:
        return max(abs(_at(each, keys) / _at(usual, keys) - 1) for each in found)

    return Spread(
        {each: largest("ttft_ms", each) for each in TTFT},
        largest("throughput", "requests_per_s"),
        max(_moved(usual, each) for each in found) / prompts,
        max(abs(_at(each, keys) - _at(usual, keys)) for each in found for keys in sources)
        / prompts,
    )


def _at(outcome: Outcome, keys: tuple[str, ...]) -> float:
    value: Any = outcome.summary
    for key in keys:
        value = value[key]
    return value


def _moved(usual: Outcome, other: Outcome) -> float:
    """Prompt tokens that came from elsewhere, request by request; computed ones are elsewhere."""
    names = [*(f"{tier}_tokens" for tier in SOURCES), "computed_tokens"]
    where = [_by_request(each, names) for each in (usual, other)]
    return (
        sum(
            abs(tokens - other_tokens)
            for request, row in where[0].items()
            for tokens, other_tokens in zip(row, where[1][request], strict=True)
        )
        / 2
    )


def _by_request(outcome: Outcome, names: list[str]) -> dict[int, tuple[int, ...]]:
    columns = outcome.columns
    rows = zip(*(columns[name] for name in names), strict=True)
    return dict(zip(columns["request"], rows, strict=True))


def row(name: str, what: str, found: Spread) -> str:
    """One line of the table, in percent."""
    cells = [
        name, what, *(f"{100 * found.ttft[each]:.1f}" for each in TTFT),
        f"{100 * found.throughput:.1f}", f"{100 * found.moved:.2f}", f"{100 * found.share:.2f}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("names", nargs="*", help="scenarios beside this file; all of them")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="given")
    options = parser.parse_args()
    print("| | off by | TTFT mean, % | p90 | p99 | requests/s | moved, % of tokens | points |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    off = ", ".join(f"{name} {100 * size:g} %" for name, size in NUDGES.items())
    try:
        for name in options.names or sorted(path.stem for path in HERE.glob("*.toml")):
            scenario = as_a_run(name, parse_assignments(options.given))
            print(row(name, off, spread(scenario, list(combinations()))), flush=True)
            if not scenario.tiers.l3.is_zero:
                found = spread(scenario, [{"writes": 1 / (1 + WRITES)}, {"writes": 1 + WRITES}])
                print(row(name, f"writes {100 * WRITES:g} %", found), flush=True)
    except HiCacheError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
