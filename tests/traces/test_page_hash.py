"""The chained hash of pages: SGLang's golden vectors, and what the chain promises."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache.errors import InputError
from traces.page_hash import event_id, key_digests, namespace_seed, page_digests, page_hashes

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "goldens" / "page_hash.json"
tokens_of = st.lists(st.integers(0, 200_000), max_size=40)


def vectors() -> dict[str, list[str]]:
    return {str(each["tokens"]): each["hex"] for each in json.loads(GOLDEN.read_text())["vectors"]}


def test_two_pages_chain() -> None:
    assert page_hashes(range(8), 4) == vectors()["0..7"]


def test_a_chain_wrongly_restarted_is_another_name() -> None:
    restarted = page_hashes([4, 5, 6, 7], 4)
    assert restarted == vectors()["4..7 with no prior (chain wrongly restarted)"]
    assert restarted[0] != page_hashes(range(8), 4)[1]


def test_bigrams() -> None:
    assert page_hashes(range(9), 4, unit="bigram") == vectors()["0..8 bigram, logical len 8"]


def test_an_id_beyond_32_bits_makes_its_page_wide() -> None:
    assert page_hashes([1, 4294967301], 2) == vectors()["[1, 4294967301]"]
    assert page_hashes([1, 5], 2) != page_hashes([1, (1 << 32) + 5], 2)


def test_the_event_id_of_the_first_page() -> None:
    golden = json.loads(GOLDEN.read_text())["event_int64_of_first"]
    assert event_id(page_digests(range(8), 4)[0]) == golden


@given(tokens=tokens_of, more=tokens_of, page=st.integers(1, 7))
def test_a_chain_goes_on_where_it_was_left(tokens: list[int], more: list[int], page: int) -> None:
    whole = tokens[: len(tokens) // page * page]
    head = page_digests(whole, page)
    rest = page_digests(more, page, head[-1] if head else b"")
    assert head + rest == page_digests(whole + more, page)


def test_a_partly_filled_page_has_no_name() -> None:
    assert page_digests(range(7), 4) == page_digests(range(4), 4)
    assert page_digests([], 4) == []


def test_arrays_of_any_kind_are_tokens() -> None:
    for dtype in (np.int32, np.int64, np.uint32):
        assert page_hashes(np.arange(8, dtype=dtype), 4) == vectors()["0..7"]


def test_a_weak_hash_would_take_these_for_one() -> None:
    """vllm#8229: +31 here and -1 there leave a polynomial hash of base 31 as it was."""
    tokens = list(range(100, 116))
    other = list(tokens)
    other[3] += 31
    other[2] -= 1

    def weak(ids: list[int]) -> int:
        value = 0
        for each in ids:
            value = value * 31 + each
        return value

    assert weak(tokens) == weak(other)
    assert page_hashes(tokens, 16) != page_hashes(other, 16)


def test_names_do_not_depend_on_the_process() -> None:
    """lmcache#1139: two processes with PYTHONHASHSEED 0 and 1 name the same pages alike."""
    code = (
        "from traces.page_hash import key_digests, page_hashes\n"
        "print(page_hashes(range(8), 4), key_digests([(5, 3)]), hash('seed'))"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.rsplit(" ", 1)
        for seed in ("0", "1")
    ]
    assert said[0][0] == said[1][0]
    assert said[0][1] != said[1][1], "the seed was not used: this test shows nothing"


@pytest.mark.parametrize("bad", [-1, 1 << 63, 1 << 70])
def test_what_is_no_token_id_is_refused(bad: int) -> None:
    with pytest.raises(InputError, match=f"{bad} is no token id"):
        page_digests([1, bad], 2)


def test_a_namespace_is_another_chain() -> None:
    seeds = [
        namespace_seed(),
        namespace_seed("a"),
        namespace_seed(None, "a"),
        namespace_seed("a", "a"),
        namespace_seed(""),
        namespace_seed("", ""),
        namespace_seed("aa", ""),
    ]
    assert seeds[0] == b""
    assert len({page_digests(range(4), 4, seed)[0] for seed in seeds}) == len(seeds)
    whole = hashlib.sha256(b"sglang-cache-namespace-v1\1" + (1).to_bytes(8, "little") + b"a\0")
    assert seeds[1] == whole.digest()


def test_stand_ins_tell_prefixes_of_keys_apart() -> None:
    first = key_digests([(10, 4)])
    assert key_digests([(10, 2), (12, 2)]) == first
    assert key_digests([(10, 2)]) == first[:2]
    assert key_digests([(11, 3)])[0] != first[1]
    assert key_digests([(12, 2)], first[1]) == first[2:]
    assert not set(key_digests([(0, 8)])) & set(page_digests(range(8), 1))


def test_private_keys_have_stand_ins_too() -> None:
    assert key_digests([(-3, 2)]) != key_digests([(3, 2)])
