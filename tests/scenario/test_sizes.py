"""Tier sizes: what people write, what it means in pages, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache.errors import InputError
from scenario.sizes import AUTO, BYTE_UNITS, ZERO, Size, bytes_text, parse_size

PAGE_TOKENS = 64
PAGE_BYTES = 64 * 147_456


def pages(text: object, l1_pages: int = 1000) -> int:
    return parse_size(text, "tiers.l2").pages("tiers.l2", PAGE_TOKENS, PAGE_BYTES, l1_pages)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("40GiB", 40 * 2**30 // PAGE_BYTES),
        ("40GB", 40 * 10**9 // PAGE_BYTES),
        ("40 gib", 40 * 2**30 // PAGE_BYTES),
        ("1.5TiB", 3 * 2**39 // PAGE_BYTES),
        ("102400 KiB", 102400 * 1024 // PAGE_BYTES),
        ("102400kB", 102_400_000 // PAGE_BYTES),
        ("10000000B", 10_000_000 // PAGE_BYTES),
        ("2x", 2000),
        ("0.5x", 500),
        (".5x", 500),
        ("1.0015x", 1001),
        ("8000000tokens", 125_000),
        ("8_000_000 tokens", 125_000),
        ("8,000,000tokens", 125_000),
        ("65tokens", 1),
        ("6000pages", 6000),
        ("1page", 1),
        ("0", 0),
        (0, 0),
        ("0x", 0),
        ("0.0GiB", 0),
    ],
)
def test_a_size_in_whole_pages(text: object, expected: int) -> None:
    assert pages(text) == expected


def test_decimals_are_exact() -> None:
    # 0.1 as a float would lose the last page.
    assert Size(1, "x", 1).pages("k", 1, 1, 10**17) == 10**16
    assert parse_size("0.3x", "k").pages("k", 1, 1, 10**17) == 3 * 10**16


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("-1GiB", "tiers.l2 is -1GiB: a size must not be negative"),
        (-5, "tiers.l2 is -5: a size must not be negative"),
        ("40", "tiers.l2 is 40: 40 of what?"),
        (40, "tiers.l2 is 40: 40 of what?"),
        ("40G", "write 40GB or 40GiB"),
        ("1.5ti", "write 1.5TB or 1.5TiB"),
        ("3k", "write 3kB or 3KiB"),
        ("40Gb", "Gb means bits"),
        ("40parsecs", "unknown unit 'parsecs'"),
        ("many", "not a size"),
        ("", "not a size"),
        ("1,5TiB", "not a size"),
        ("1__0GiB", "not a size"),
        ("1e9B", "not a size"),
        ("2x2", "not a size"),
        ("1.5pages", "give a whole number of pages"),
        ("0.5tokens", "give a whole number of tokens"),
        ("0.5B", "give a whole number of B"),
        (True, "not a size"),
        (None, "not a size"),
        ([], "not a size"),
        (float("nan"), "not a size"),
    ],
)
def test_everything_else_is_one_clear_line(text: object, says: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_size(text, "tiers.l2")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["1B", "63tokens", "0.0001x", "9MB"])
def test_less_than_a_page_is_no_tier(text: str) -> None:
    with pytest.raises(InputError, match=r"tiers\.l2 is .*: less than one page of .*0 to switch"):
        pages(text)


def test_auto_is_a_size_but_not_a_number() -> None:
    assert parse_size("Auto", "tiers.l1") is AUTO
    assert str(AUTO) == "auto"
    assert not AUTO.is_zero
    assert ZERO.is_zero


amounts = st.integers(1, 10**15)
sizes = st.one_of(
    st.just(AUTO),
    st.just(ZERO),
    st.builds(Size, amounts, st.sampled_from(["pages", "tokens", "B"])),
    st.builds(
        lambda digits, unit, decimals: parse_size(
            f"{digits // 10**decimals}.{digits % 10**decimals:0{decimals}d}{unit}", "k"
        ),
        amounts,
        st.sampled_from([unit for unit in BYTE_UNITS if unit != "B"] + ["x"]),
        st.integers(1, 6),
    ),
)


@given(sizes)
def test_the_text_of_a_size_reads_back_as_it(size: Size) -> None:
    assert parse_size(str(size), "k") == size


@given(st.integers(1, 10**9), st.integers(0, 5), st.integers(1, 10**12))
def test_pages_of_bytes_are_the_floor(digits: int, decimals: int, page_bytes: int) -> None:
    size = Size(digits, "MiB", decimals)
    size_bytes_times_scale = digits * 2**20
    try:
        count = size.pages("k", 1, page_bytes)
    except InputError:
        assert size_bytes_times_scale < page_bytes * 10**decimals
        return
    assert count * page_bytes * 10**decimals <= size_bytes_times_scale
    assert (count + 1) * page_bytes * 10**decimals > size_bytes_times_scale


def test_bytes_for_people() -> None:
    assert bytes_text(110 * 2**30) == "110 GiB"
    assert bytes_text(1536) == "1.5 KiB"
    assert bytes_text(12) == "12 B"
