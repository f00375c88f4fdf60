"""Copies in pages of several measured sizes: those, sizes between them, and smaller ones."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from simpy import Environment

from hicache.errors import InputError
from hicache.kernel import Pending
from hicache.operations import Copy
from report.run import Finer
from scenario.load import load_scenario
from scenario.profile import (
    BackendCopies,
    Backends,
    Curve,
    PagedCopies,
    Profile,
    Quantity,
    Surface,
    decode_profile,
    dump_profile,
    load_profile,
)
from sim.host import Host
from sim.pcie import Link
from sim.ranges import RangeWatch
from sim.replay import replay

BASE = load_profile("nvidia-h200")
REPOSITORY = Path(__file__).resolve().parents[2]
FRAGMENTED = REPOSITORY / "benchmarks" / "validation" / "shared-l2.toml"
PAGE = 64_000
OTHERS = (4_000, 16_000)
SIZES = (64_000, 640_000, 6_400_000)
HOW = {"provenance": "measured", "how": "a test"}


def run_ns(size: int, page: int, way: str) -> int:
    """Narrow rows are a little slower."""
    return 1_000 + size // (20 if way == "h2d" else 10) + (size // page if page != PAGE else 0)


def scattered_ns(size: int, page: int, way: str) -> int:
    return run_ns(size, page, way) + 50 * (size // page - 1)


def surface(of, way: str) -> Surface:
    return Surface(
        **HOW, points=tuple((page, size, of(size, page, way)) for page in OTHERS for size in SIZES)
    )


def profile_of(by_page: bool = True) -> Profile:
    """One whose back-end `direct` is what the functions above say."""
    curves = {
        f"{way}{suffix}": Curve(**HOW, points=tuple((size, of(size, PAGE, way)) for size in SIZES))
        for way in ("h2d", "d2h")
        for suffix, of in (("", run_ns), ("_scattered", scattered_ns))
    }
    paged = PagedCopies(
        h2d=surface(run_ns, "h2d"), d2h=surface(run_ns, "d2h"),
        h2d_scattered=surface(scattered_ns, "h2d"), d2h_scattered=surface(scattered_ns, "d2h"),
    )  # fmt: skip
    direct = BackendCopies(
        **curves, page_bytes=PAGE, duplex_bytes_per_s=Quantity(**HOW, value=10**10),
        by_page=paged if by_page else None,
    )  # fmt: skip
    pcie = msgspec.structs.replace(BASE.pcie, backends=Backends(direct=direct))
    return msgspec.structs.replace(BASE, pcie=pcie)


def took(profile: Profile, copy: Copy, watch: RangeWatch | None = None) -> int:
    env = Environment(0)
    watch = watch or RangeWatch()
    link = Link(env, profile.pcie, Host(profile.host, watch), "backend", "direct", watch=watch)
    pending: Pending = Pending(env, 0, 0)
    done: list[int] = []
    pending.callbacks.append(lambda event: done.append(int(env.now)))
    link.submit(pending, copy, 0)
    env.run()
    return done[0]


def copy_of(size: int, page: int, pieces: int, way: str = "h2d") -> Copy:
    return Copy(way, size // page, size, pieces)  # type: ignore[arg-type]


@pytest.mark.parametrize("way", ["h2d", "d2h"])
@pytest.mark.parametrize("page", [*OTHERS, PAGE])
def test_a_size_of_pages_that_was_measured_takes_what_was_measured(page, way):
    for size in SIZES:
        alone = took(profile_of(), copy_of(size, page, 1, way))
        assert alone == pytest.approx(run_ns(size, page, way), abs=1)
        apart = took(profile_of(), copy_of(size, page, size // page, way))
        assert apart == pytest.approx(scattered_ns(size, page, way), abs=1)


def test_between_two_sizes_of_pages_it_goes_by_their_number():
    size, page = 640_000, 8_000
    few, many = scattered_ns(size, 16_000, "h2d"), scattered_ns(size, 4_000, "h2d")
    found = took(profile_of(), copy_of(size, page, size // page))
    # 80 pages, between 40 and 160; each piece costs the same in both.
    assert few < found < many
    assert found == pytest.approx(run_ns(size, 8_000, "h2d") + 50 * 79, rel=0.01)


def test_smaller_and_larger_pages_are_more_and_fewer_pieces():
    size = 640_000
    fine = took(profile_of(), copy_of(size, 1_000, 640))
    assert fine == pytest.approx(run_ns(size, 4_000, "h2d") + 50 * 639, rel=0.01)
    coarse = took(profile_of(), copy_of(size, 320_000, 2))
    assert coarse == pytest.approx(run_ns(size, PAGE, "h2d") + 50, rel=0.01)


def test_pages_smaller_than_all_that_were_measured_are_told():
    watch = RangeWatch()
    took(profile_of(), copy_of(640_000, 4_000, 160), watch)
    took(profile_of(), copy_of(640_000, 1_000, 1), watch)  # in one piece pages do not count
    assert watch.outside_range() == ()
    took(profile_of(), copy_of(640_000, 2_000, 320), watch)
    took(profile_of(), copy_of(640_000, 1_000, 640), watch)
    (found,) = watch.outside_range()
    assert found[1:] == (2, 1_000, 4_000)
    assert isinstance(found, Finer)
    alone = RangeWatch()
    took(profile_of(by_page=False), copy_of(640_000, 4_000, 160), alone)
    assert alone.outside_range()[0][1:] == (1, 4_000, PAGE)


def test_a_copy_is_too_large_by_the_samples_of_its_own_pages():
    """Fewer bytes were measured in one-token pages than in large ones."""
    profile = profile_of()
    direct = profile.pcie.backends.direct
    fewer = {
        name: msgspec.structs.replace(
            getattr(direct.by_page, name),
            points=tuple(
                each for each in getattr(direct.by_page, name).points
                if each[0] != 4_000 or each[1] < SIZES[-1]
            ),
        )
        for name in ("h2d", "d2h", "h2d_scattered", "d2h_scattered")
    }  # fmt: skip
    direct = msgspec.structs.replace(direct, by_page=PagedCopies(**fewer))
    pcie = msgspec.structs.replace(profile.pcie, backends=Backends(direct=direct))
    profile = msgspec.structs.replace(profile, pcie=pcie)
    watch = RangeWatch()
    took(profile, copy_of(SIZES[-1], PAGE, 1), watch)
    took(profile, copy_of(SIZES[-1], 16_000, 1), watch)
    assert watch.outside_range() == ()
    took(profile, copy_of(SIZES[-1], 4_000, 1), watch)
    took(profile, copy_of(SIZES[-1], 8_000, 1), watch)  # between the two, from samples of both
    ((_, times, asked, largest),) = watch.outside_range()
    assert (times, asked, largest) == (2, SIZES[-1], SIZES[-2])
    took(profile, copy_of(2 * SIZES[-1], PAGE, 1), watch)
    assert watch.outside_range()[0][1] == 3


def test_a_result_says_so():
    def warned(page_size_tokens: int, page_ids: str) -> list[str]:
        given = {
            "machine.transfer_mode": "backend", "engine.page_ids": page_ids,
            "tiers.page_size_tokens": page_size_tokens,
            "machine.profile": "nvidia-h200-qwen3-4b",  # its copies are in pages of 64 alone
        }  # fmt: skip
        warnings = replay(load_scenario(FRAGMENTED, given)).summary["warnings"]
        return [each for each in warnings if "bytes of each page" in each]

    told = warned(16, "named")
    assert told
    for each in told:
        assert each.startswith("outside_range: ")
        assert "lay below what the profile measured (9,437,184; farthest 2,359,296)" in each
        assert each.endswith("their time is in proportion to the pieces")
    assert warned(16, "counted") == []  # every copy is taken for one piece
    assert warned(64, "named") == []


@pytest.mark.parametrize("name", ["h2d", "d2h", "h2d_scattered", "d2h_scattered"])
def test_every_value_of_every_page_matters(name):
    profile = profile_of()
    assert profile.pcie.backends is not None
    direct = profile.pcie.backends.direct
    assert direct is not None
    assert direct.by_page is not None
    points = getattr(direct.by_page, name).points
    for place, (page, size, ns) in enumerate(points):
        changed = msgspec.structs.replace(
            getattr(direct.by_page, name),
            points=(*points[:place], (page, size, ns + 100), *points[place + 1 :]),
        )
        by_page = msgspec.structs.replace(direct.by_page, **{name: changed})
        backends = Backends(direct=msgspec.structs.replace(direct, by_page=by_page))
        other = msgspec.structs.replace(
            profile, pcie=msgspec.structs.replace(profile.pcie, backends=backends)
        )
        apart = size // page if name.endswith("_scattered") else 1
        copy = copy_of(size, page, apart, name[:3])
        assert took(other, copy) > took(profile, copy)


def test_such_a_profile_is_written_and_read():
    profile = profile_of()
    assert decode_profile(dump_profile(profile).encode(), "here") == profile
    without = msgspec.json.decode(dump_profile(profile_of(by_page=False)))
    assert "by_page" not in without["pcie"]["backends"]["direct"]


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (PAGE, r"by_page.d2h has pages of \[16000, 64000\] bytes: they must be 1 or more, and not"),
        (0, r"by_page.d2h has pages of \[0, 16000\] bytes: they must be 1 or more"),
        (5, r"by_page.d2h has pages of \[5, 16000\] bytes and .*h2d of \[4000, 16000\]"),
    ],
)
def test_pages_that_cannot_be_are_refused(page, message):
    table = msgspec.json.decode(dump_profile(profile_of()))
    points = table["pcie"]["backends"]["direct"]["by_page"]["d2h"]["points"]
    changed = sorted([page if each[0] == OTHERS[0] else each[0], *each[1:]] for each in points)
    table["pcie"]["backends"]["direct"]["by_page"]["d2h"]["points"] = changed
    with pytest.raises(InputError, match=message):
        decode_profile(msgspec.json.encode(table), "here")
