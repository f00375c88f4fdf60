"""The page hash against the package's own, in C++ where that compiles."""

from __future__ import annotations

import random
import subprocess
from array import array

import pytest
from published import load

from traces.page_hash import event_id, namespace_seed, page_digests, page_hashes


@pytest.fixture(scope="module")
def theirs():
    utils = load("utils")
    try:
        utils.get_hash_str(array("q", [1]), None, 1)
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        pytest.skip(f"the package's hash does not compile here: {error.__cause__ or error}")
    return utils


def takes_wide_ids(theirs) -> bool:
    """0.5.20 refuses ids of 2^32 or more; 0.5.23 has the wide form that we write."""
    try:
        theirs.get_hash_str(array("q", [1 << 32]), None, 1)
    except IndexError:
        return False
    return True


def test_hashes_of_random_prompts(theirs) -> None:
    rng, wide = random.Random(1), takes_wide_ids(theirs)
    for _ in range(300):
        page = rng.choice([1, 2, 3, 16, 64])
        most = rng.choice([10, 200_000, (1 << 32) - 1, *([1 << 32, (1 << 63) - 1] if wide else [])])
        tokens = [rng.randint(0, most) for _ in range(rng.randint(0, 6) * page)]
        hashes = theirs.get_hash_str(array("q", tokens), None, page)
        assert page_hashes(tokens, page) == hashes
        if hashes:
            cut = rng.randint(0, len(hashes) - 1)
            prior = page_digests(tokens[: cut * page], page)[-1] if cut else b""
            assert page_hashes(tokens[cut * page :], page, prior) == hashes[cut:]
            assert event_id(bytes.fromhex(hashes[0])) == theirs.hash_str_to_int64(hashes[0])


def test_hashes_of_bigrams(theirs) -> None:
    key_of = load("radix_cache").RadixKey
    rng, wide = random.Random(2), takes_wide_ids(theirs)
    for _ in range(100):
        page = rng.choice([1, 2, 5])
        most = rng.choice([10, 1 << 33 if wide else 1 << 31])
        tokens = [rng.randint(0, most) for _ in range(rng.randint(1, 5) * page + 1)]
        key = key_of(array("q", tokens), is_bigram=True)
        assert page_hashes(tokens, page, unit="bigram") == theirs.get_hash_str(key, None, page)


def test_namespaces(theirs) -> None:
    if not hasattr(theirs, "storage_namespace_seed"):
        pytest.skip("this version has no namespaces")
    for extra in (None, "", "lora", "ß"):
        for salt in (None, "", "lora", "x" * 300):
            seed = theirs.storage_namespace_seed(extra, salt)
            assert namespace_seed(extra, salt).hex() == (seed or "")
