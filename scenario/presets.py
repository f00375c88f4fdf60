"""Presets: named sets of ordinary options, as dotted keys. A scenario file or a flag overrides any.

A preset says only where it differs from the defaults in `hicache.options`; those defaults are the
preset `mini-hicache`. Nothing behaves differently because of a preset's name.
"""

from __future__ import annotations

from hicache.errors import InputError
from scenario.names import nearest

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


def preset_options(name: str) -> dict[str, object]:
    """What the preset sets, as dotted keys. Raises InputError for an unknown name."""
    if name in PRESETS:
        return PRESETS[name]
    there_are = ", ".join(PRESETS)
    if name.lower().startswith("sglang"):
        raise InputError(
            f"preset is {name!r}: the SGLang presets are not in this version; "
            f"there are: {there_are}"
        )
    raise InputError(
        f"preset is {name!r}: no such preset{nearest(name, PRESETS)}; there are: {there_are}"
    )


def preset_text(name: str) -> str:
    """The preset as a TOML text: every option of the tables it can set, with its value."""
    from scenario.load import load_scenario
    from scenario.records import toml_text

    return toml_text(load_scenario(None, {"preset": name}), ("cache", "restore", "scheduler"))
