"""Profiles: the shipped ones, reading and writing, and what is said about bad ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from by_hand import H200_BY_HAND

from hicache.errors import InputError
from scenario.geometry import load_geometry
from scenario.profile import decode_profile, dump_profile, load_profile, profile_names, sourced
from scenario.profile_sources import group_a, group_b, h200, main

DATA = Path(__file__).parent.parent / "sim" / "data"
MEASURED = DATA / "nvidia-h200.json"
ARTICLE = DATA / "published_mini_hicache.json"


def test_the_known_machines():
    assert {"mini-group-a", "mini-group-b", "nvidia-h200"} <= set(profile_names())
    for name in profile_names():
        assert load_profile(name).name == name
        assert load_profile(name.upper()) == load_profile(name)


def test_profiles_are_made_from_their_sources(tmp_path):
    main(str(MEASURED), str(ARTICLE), str(tmp_path))
    for name in ("mini-group-a", "mini-group-b"):
        assert load_profile(tmp_path / f"{name}.json") == load_profile(name)
    assert load_profile(tmp_path / "h200-by-hand.json") == load_profile(H200_BY_HAND)
    measured, article = json.loads(MEASURED.read_text()), json.loads(ARTICLE.read_text())
    assert h200(measured) == load_profile(H200_BY_HAND)
    assert group_a(article) == load_profile("mini-group-a")
    assert group_b(article) == load_profile("mini-group-b")


@pytest.mark.parametrize("name", profile_names())
def test_a_profile_is_written_and_read_back(name):
    profile = load_profile(name)
    assert decode_profile(dump_profile(profile).encode(), "here") == profile


@pytest.mark.parametrize("name", profile_names())
def test_the_sampled_model_is_the_geometry_of_that_name(name):
    model = load_profile(name).gpu.model
    geometry = load_geometry(model.name)
    for key in model.__struct_fields__:
        if key not in ("provenance", "how"):
            assert getattr(model, key) == getattr(geometry, key)


def test_estimates_are_listed_and_nothing_else():
    profile = load_profile(H200_BY_HAND)
    keys = [key for key, value in sourced(profile) if value.provenance == "estimate"]
    assert [each.key for each in profile.estimates()] == keys
    assert "disk.mixed_permille" in keys
    assert "pcie.h2d" not in keys
    assert all(each.how for each in profile.estimates())


def test_the_h200_in_the_units_of_a_profile():
    profile = load_profile(H200_BY_HAND)
    assert profile.pcie.h2d.points[-1] == (1 << 30, 19_460_000)
    assert profile.gpu.dense is not None
    assert profile.gpu.dense.points[0] == (1, 6_316_000)
    assert (4 << 20, 4, int(1.66 * (1 << 30))) in profile.disk.read_bytes_per_s.points


def test_an_unknown_machine_is_told_the_known_and_the_nearest():
    with pytest.raises(InputError) as error:
        load_profile("nvidia-h20")
    assert str(error.value) == (
        "machine.profile is 'nvidia-h20': no known machine (did you mean nvidia-h200?); known are "
        f"{', '.join(profile_names())}; for another give the path of its profile, a .json file"
    )


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match=r"none\.json: No such file"):
        load_profile(tmp_path / "none.json")


DELETE = object()


def raw_with(key: str, value: object) -> dict[str, Any]:
    """A good profile, as decoded JSON, with one value changed."""
    raw = msgspec.to_builtins(load_profile(H200_BY_HAND))
    part = raw
    *path, last = key.split("/")
    for name in path:
        part = part[int(name)] if isinstance(part, list | tuple) else part[name]
        if isinstance(part, tuple):
            raise AssertionError("change the whole list")
    if value is DELETE:
        del part[last]
    else:
        part[last] = value
    return raw


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("schema", 3, "schema is 3: this version reads schemas 1 and 2; a later version of"),
        ("schema", "1", "schema is '1': this version reads schemas 1 and 2"),
        ("schema", DELETE, "schema is None: this version reads schemas 1 and 2"),
        ("name", DELETE, "name is missing"),
        ("colour", 1, "unknown key colour; there are schema, name, machine"),
        ("gpu/dence", 1, "unknown key gpu.dence (did you mean dense?); there are model, dense"),
        ("host/engine/step_ns", DELETE, "host.engine.step_ns is missing"),
        ("disk/workers/value", "2", "disk.workers.value is '2': expected `int`, got `str`"),
        ("disk/workers/value", 0, "disk.workers.value is 0: it must be 1 or more"),
        (
            "disk/read_latency_ns/value",
            -1,
            "disk.read_latency_ns.value is -1: it must be 0 or more",
        ),
        (
            "disk/mixed_permille/value",
            1001,
            "disk.mixed_permille.value is 1001: it must be at most",
        ),
        (
            "pcie/h2d/provenance",
            "guess",
            "pcie.h2d.provenance is 'guess': it must be one of measured, published, inferred, "
            "estimate",
        ),
        ("pcie/h2d/how", " ", "pcie.h2d.how is empty: say in words how the value is known"),
        ("pcie/h2d/points", [], "pcie.h2d.points is []: it must hold at least one sample"),
        (
            "pcie/h2d/points",
            [[1, 2, 3]],
            "pcie.h2d.points[0] is [1, 2, 3]: expected `array` of length 2",
        ),
        ("pcie/h2d/points", [[1, 2], [3, 2.5]], "pcie.h2d.points[1][1] is 2.5: expected `int`"),
        (
            "pcie/h2d/points",
            [[2, 2], [2, 3]],
            "pcie.h2d.points[1] is [2, 3]: samples must be in strictly increasing order",
        ),
        ("pcie/h2d/points", [[2, -2]], "pcie.h2d.points[0] is [2, -2]: sizes must be 0 or more"),
        (
            "host/copy_bytes_per_s/points",
            [[1, 0]],
            "[0] is [1, 0]: sizes must be 0 or more, the sample 1",
        ),
        (
            "disk/read_bytes_per_s/points",
            [[9, 4, 5]],
            "no sample of 1 operation at once; one is needed",
        ),
        ("gpu/model/layers", 0, "gpu.model.layers is 0: it must be 1 or more"),
        (
            "gpu/ranks",
            {"value": 0, "provenance": "measured", "how": "x"},
            "gpu.ranks.value is 0: it must be 1 or more",
        ),
        (
            "gpu/dense",
            DELETE,
            "gpu.dense is missing: give prefill, or all of dense, attention_prefill",
        ),
        (
            "gpu/prefill",
            {"provenance": "measured", "how": "x", "points": [[1, 2]]},
            "gpu has prefill and dense: give prefill or dense, attention_prefill, attention_decode",
        ),
    ],
)
def test_a_bad_profile_is_told_file_key_value_and_what_is_allowed(key, value, message):
    text = msgspec.json.encode(raw_with(key, value))
    with pytest.raises(InputError) as error:
        decode_profile(text, "my.json")
    assert str(error.value).startswith("my.json: ")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", "my.json: not valid JSON: Input data was truncated"),
        (b"[]", "my.json: not a table of keys and values"),
        (b"\xff", "my.json: not valid JSON"),
    ],
)
def test_what_is_no_profile_at_all(text, message):
    with pytest.raises(InputError, match=message):
        decode_profile(text, "my.json")
