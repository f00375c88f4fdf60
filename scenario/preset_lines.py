"""Presets as people read them: one as a scenario file, all in a list, two side by side.

What `show_lines` gives is TOML that `--scenario` takes. Prints nothing by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from scenario.load import load_scenario
from scenario.presets import (
    PRESET_NAMES,
    PRESET_TITLES,
    lacking_keys,
    missing_rules,
    preset_options,
    preset_text,
)
from scenario.records import TABLES, values
from scenario.sglang_rules import RULES, SGLANG_PRESETS
from scenario.toml_values import toml_value


def list_lines() -> Iterator[str]:
    """One line a preset."""
    for name in PRESET_NAMES:
        missing = len(missing_rules(name))
        lacks = f" ({missing} of its {len(RULES)} rules not in this version)" if missing else ""
        yield f"{name:<15} {PRESET_TITLES[name]}{lacks}"


def show_lines(name: str) -> Iterator[str]:
    """What the preset sets, rule by rule, and which rules it cannot follow. Raises InputError for
    an unknown name.
    """
    options = preset_options(name)
    yield f"# {name}: {PRESET_TITLES[name]}. A scenario can override every one of these."
    yield f'preset = "{name}"'
    if not options:
        yield ""
        yield "# It sets nothing: these are the defaults."
        yield from preset_text(name).splitlines()
        return
    rule_of = {key: title for title, rule in RULES.items() for key in rule.options}
    for table in TABLES:
        keys = [key for key in options if key.partition(".")[0] == table]
        if not keys:
            continue
        yield ""
        yield f"[{table}]"
        said = ""
        for key in keys:
            title = rule_of[key] if name in SGLANG_PRESETS else ""
            if title != said:
                yield f"# {title}: {RULES[title].says}"
                said = title
            yield f"{key.partition('.')[2]} = {toml_value(options[key])}"
    yield from _missing_lines(name)


def diff_lines(one: str, other: str) -> Iterator[str]:
    """Every option of which two presets give different values, and every rule that only one of them
    follows in full. Raises InputError for an unknown name.
    """
    first = dict(values(load_scenario(None, {"preset": one})))
    second = dict(values(load_scenario(None, {"preset": other})))
    differing = [key for key in first if key != "preset" and first[key] != second[key]]
    rows = [(key, toml_value(first[key]), toml_value(second[key])) for key in differing]
    table = [("", one, other), *rows]
    widths = [max(len(row[column]) for row in table) for column in range(3)]
    if rows:
        for row in table:
            yield "  ".join(
                f"{text:<{width}}" for text, width in zip(row, widths, strict=True)
            ).rstrip()
    else:
        yield f"{one} and {other} set the same"
    yield from _unlike_rules(one, other)


def _unlike_rules(one: str, other: str) -> Iterator[str]:
    """What two versions of SGLang do differently though this version cannot show it."""
    if one not in SGLANG_PRESETS or other not in SGLANG_PRESETS:
        return
    mine, theirs = SGLANG_PRESETS.index(one), SGLANG_PRESETS.index(other)
    known = preset_options(one)
    for title, rule in RULES.items():
        for key, by_version in rule.options.items():
            if key not in known and by_version[mine] != by_version[theirs]:
                yield (
                    f"not in this version: {title}: {key} = {toml_value(by_version[mine])} and "
                    f"{toml_value(by_version[theirs])}"
                )


def _missing_lines(name: str) -> Iterator[str]:
    missing = missing_rules(name)
    if not missing:
        return
    yield ""
    yield f"# Not in this version, {len(missing)} of {len(RULES)} rules of SGLang:"
    for title, rule in missing.items():
        yield f"#   {title}: {rule.says}"
        yield f"#       lacks {', '.join(lacking_keys(name, rule))}"
