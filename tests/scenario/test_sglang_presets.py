"""The SGLang presets: they set ordinary options, can be overridden, and say what they lack."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

from hicache.errors import InputError
from scenario import presets
from scenario.load import load_scenario
from scenario.preset_lines import diff_lines, list_lines, show_lines
from scenario.presets import (
    PRESET_NAMES,
    lacking_keys,
    missing_rules,
    preset_options,
    preset_warnings,
)
from scenario.records import value_types, values
from scenario.sglang_rules import RULES, SGLANG_PRESETS


def loaded(preset: str, **overrides: object) -> dict[str, object]:
    given = {key.replace("__", "."): value for key, value in overrides.items()}
    return dict(values(load_scenario(None, {"preset": preset, **given})))


@pytest.mark.parametrize("preset", SGLANG_PRESETS)
def test_a_preset_is_what_its_rules_say_as_far_as_the_options_are_there(preset: str) -> None:
    place = SGLANG_PRESETS.index(preset)
    scenario, types = loaded(preset), value_types()
    asked = {
        key: by_version[place]
        for rule in RULES.values()
        for key, by_version in rule.options.items()
    }
    for key, value in asked.items():
        kind = types.get(key)
        if kind is None or (get_origin(kind) is Literal and value not in get_args(kind)):
            assert key not in preset_options(preset)
        else:
            assert str(scenario[key]) == str(value), key


def test_what_is_decided_today() -> None:
    scenario = loaded("sglang-0.5.20")
    assert scenario["cache.eviction_granularity"] == "node"
    assert scenario["cache.write_at"] == "prefill"
    assert (scenario["restore.policy"], scenario["restore.threshold_tokens"]) == ("threshold", 10)
    assert scenario["restore.layerwise"] is True
    assert str(scenario["tiers.l2"]) == "2x"


@pytest.mark.parametrize("preset", SGLANG_PRESETS)
def test_ranks_are_there(preset: str) -> None:
    assert "ranks" not in missing_rules(preset)
    assert not any("ranks.tp" in line for line in show_lines(preset))
    assert loaded(preset, ranks__tp=8, ranks__tp_lcm_size=16)["ranks.tp"] == 8


@pytest.mark.parametrize("preset", SGLANG_PRESETS)
def test_any_option_can_be_overridden(preset: str) -> None:
    scenario = loaded(preset, restore__policy="cost", tiers__l2="3x", cache__eviction="lfu")
    assert scenario["restore.policy"] == "cost"
    assert str(scenario["tiers.l2"]) == "3x"
    assert scenario["cache.eviction"] == "lfu"
    assert scenario["cache.write_at"] == "prefill"


def test_no_option_is_set_by_two_rules() -> None:
    keys = [key for rule in RULES.values() for key in rule.options]
    assert len(keys) == len(set(keys))
    for rule in RULES.values():
        assert rule.options or rule.needs, rule.says


@pytest.mark.parametrize("preset", SGLANG_PRESETS)
def test_a_rule_is_missing_while_an_option_of_it_is(preset: str) -> None:
    missing = missing_rules(preset)
    for title, rule in RULES.items():
        assert bool(lacking_keys(preset, rule)) == (title in missing)
    said = preset_warnings(preset)
    assert bool(said) == bool(missing)
    if said:
        assert all(title in said[0] for title in missing)


def test_an_option_that_comes_to_be_is_set_and_its_rule_no_longer_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here: dict[str, Any] = {
        key: kind for key, kind in value_types().items() if not key.endswith("_eviction_amount")
    }
    both = Literal["shortfall", "request"]
    for types, amount in (
        (here, None),
        (here | {"cache.l1_eviction_amount": Literal["shortfall"]}, None),
        (here | {"cache.l1_eviction_amount": both}, "request"),
    ):
        presets._sglang_options.cache_clear()
        monkeypatch.setattr(presets, "_types", lambda types=types: types)
        assert preset_options("sglang-0.5.9").get("cache.l1_eviction_amount") == amount
        assert ("L1 shortfall" in missing_rules("sglang-0.5.9")) == (amount is None)
    assert preset_options("sglang-0.5.20")["cache.l1_eviction_amount"] == "shortfall"
    presets._sglang_options.cache_clear()


def test_a_rule_may_need_a_value_that_no_preset_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    types = value_types()
    assert "write_through" in get_args(types["cache.write_policy"])
    without = types | {"cache.write_policy": Literal["write_through", "none"]}
    monkeypatch.setattr(presets, "_types", lambda: without)
    assert "write back" in missing_rules("sglang-0.5.20")
    with_it = types | {"cache.write_policy": Literal["write_through", "write_back"]}
    monkeypatch.setattr(presets, "_types", lambda: with_it)
    assert "write back" not in missing_rules("sglang-0.5.20")


@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_what_show_prints_is_a_scenario_file_of_the_preset(preset: str, tmp_path: Path) -> None:
    file = tmp_path / "shown.toml"
    file.write_text("\n".join(show_lines(preset)) + "\n", encoding="utf-8")
    assert load_scenario(file) == load_scenario(None, {"preset": preset})


@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_show_names_every_rule_that_is_missing(preset: str) -> None:
    text = "\n".join(show_lines(preset))
    missing = missing_rules(preset)
    assert ("Not in this version" in text) == bool(missing)
    for title, rule in missing.items():
        assert f"#   {title}: {rule.says}" in text
        for key in lacking_keys(preset, rule):
            assert key in text


def test_presets_without_rules_of_sglang_lack_nothing() -> None:
    assert missing_rules("mini-hicache") == {}
    assert preset_warnings("block-lru") == []


def test_list_has_a_line_for_each() -> None:
    lines = list(list_lines())
    assert [line.split()[0] for line in lines] == list(PRESET_NAMES)


def test_diff_shows_both_values() -> None:
    lines = list(diff_lines("mini-hicache", "block-lru"))
    assert lines[0].split() == ["mini-hicache", "block-lru"]
    rows = {line.split()[0]: line.split()[1:] for line in lines[1:]}
    assert rows["cache.pages"] == ['"full"', '"partial"']
    assert rows["restore.policy"] == ['"cost"', '"always"']
    assert "cache.eviction" not in rows
    assert list(diff_lines("mini-hicache", "mini-hicache")) == [
        "mini-hicache and mini-hicache set the same"
    ]


def test_diff_of_two_versions_says_all_in_which_they_differ() -> None:
    text = "\n".join(diff_lines("sglang-0.5.9", "sglang-0.5.20"))
    for rule in RULES.values():
        for key, (first, second, _) in rule.options.items():
            assert (key in text) == (first != second), key


def test_an_unknown_preset_is_named_with_those_there_are() -> None:
    with pytest.raises(
        InputError, match=r"'sglang-0\.5\.8'.*did you mean sglang-0\.5\.9"
    ) as caught:
        list(show_lines("sglang-0.5.8"))
    assert "sglang-0.5.23" in str(caught.value)
