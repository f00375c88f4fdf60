"""Presets: named sets of ordinary options, as dotted keys. A scenario file or a flag overrides any.

A preset says only where it differs from the defaults in `hicache.options`; those defaults are the
preset `mini-hicache`. Nothing behaves differently because of a preset's name. A preset of SGLang
(`scenario.sglang_rules`) sets what this version can do, and names the rules that it cannot follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, get_args, get_origin

from hicache.errors import InputError
from scenario.names import nearest
from scenario.sglang_rules import RULES, SGLANG_PRESETS, Rule
from scenario.toml_values import toml_value

DEFAULT_PRESET = "mini-hicache"

PRESETS: dict[str, dict[str, object]] = {
    # The mini-HiCache branch of mini-sglang: three tiers in one tree, a private L3 file, leaf LRU
    # in each tier, whole leaves evicted, full pages only, at most prompt - 1 tokens hit, restores
    # by cost. Its published runs used `tiers.page_size_tokens = 1`.
    "mini-hicache": {},
    # The counting rules of published block-trace studies: every hash id is one block, also a partly
    # filled one; all of a prompt can hit; exactly the missing blocks are evicted; outputs are not
    # cached. With more tiers every hit below L1 is restored, so that hits are counted wherever they
    # are.
    "block-lru": {
        "cache.pages": "partial",
        "cache.hit_cap": "none",
        "cache.outputs": "dropped",
        "cache.eviction": "lru",
        "cache.eviction_granularity": "page",
        "restore.policy": "always",
    },
}
PRESET_NAMES = (*PRESETS, *SGLANG_PRESETS)
PRESET_TITLES = {
    "mini-hicache": "three tiers in one tree, a private L3 file, restores by cost",
    "block-lru": "the counting rules of published studies of block traces",
} | {name: f"SGLang {name.removeprefix('sglang-')} with HiCache" for name in SGLANG_PRESETS}


def preset_options(name: str) -> dict[str, object]:
    """What the preset sets, as dotted keys. Raises InputError for an unknown name."""
    if name in PRESETS:
        return PRESETS[name]
    if name in SGLANG_PRESETS:
        return _sglang_options(name)
    raise InputError(
        f"preset is {name!r}: no such preset{nearest(name, PRESET_NAMES)}; there are: "
        f"{', '.join(PRESET_NAMES)}"
    )


def missing_rules(name: str) -> dict[str, Rule]:
    """The rules of SGLang that the preset stands for and this version cannot follow, by name."""
    if name not in SGLANG_PRESETS:
        return {}
    place = SGLANG_PRESETS.index(name)
    return {title: rule for title, rule in RULES.items() if _lacking(rule, place)}


def lacking_keys(name: str, rule: Rule) -> list[str]:
    """What a rule of the preset lacks: `key = value` that it would set, or a key it needs."""
    place = SGLANG_PRESETS.index(name)
    return _lacking(rule, place)


def preset_warnings(name: str) -> list[str]:
    """What a result made with the preset must say."""
    missing = missing_rules(name)
    if not missing:
        return []
    return [
        f"preset {name}: {len(missing)} of {len(RULES)} rules of SGLang are not in this version "
        f"({', '.join(missing)}); hicache preset show {name} says what each means"
    ]


def preset_text(name: str) -> str:
    """The preset as a TOML text: every option of the tables it can set, with its value."""
    from scenario.load import load_scenario
    from scenario.records import TABLES, toml_text

    # What else a table holds (a trace, a model) is the scenario's business.
    tables = {"cache", "restore", "scheduler"} | {
        key.split(".")[0]
        for key in preset_options(name)
        if not key.startswith(("machine", "tiers"))
    }
    scenario = load_scenario(None, {"preset": name})
    return toml_text(scenario, [table for table in TABLES if table in tables])


@cache
def _sglang_options(name: str) -> dict[str, object]:
    place = SGLANG_PRESETS.index(name)
    options: dict[str, object] = {}
    for rule in RULES.values():
        for key, values in rule.options.items():
            if is_allowed(key, values[place]):
                options[key] = typed(key, values[place])
    return options


def _lacking(rule: Rule, place: int) -> list[str]:
    lacking = [
        f"{key} = {toml_value(values[place])}"
        for key, values in rule.options.items()
        if not is_allowed(key, values[place])
    ]
    for need in rule.needs:
        key, equals, value = need.partition("=")
        if not is_allowed(key, value if equals else None):
            lacking.append(f"{key} = {toml_value(value)}" if equals else key)
    return lacking


def is_allowed(key: str, value: object) -> bool:
    """Whether a scenario of this version takes the value for the key (None: knows the key)."""
    kind = _types().get(key)
    if kind is None:
        return False
    return value is None or get_origin(kind) is not Literal or value in get_args(kind)


def typed(key: str, value: object) -> object:
    """The value as the key's record holds it: sizes are read."""
    from scenario.sizes import Size, parse_size

    return parse_size(value, key) if _types()[key] is Size else value


def _types() -> Mapping[str, Any]:
    # The records name their default preset, which stands here.
    from scenario.records import value_types

    return value_types()
