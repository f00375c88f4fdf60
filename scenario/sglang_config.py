"""`--hicache-storage-backend-extra-config`: JSON text, or `@` and a file in JSON, TOML or YAML.

What concerns the cache becomes options; a store's own keys are left to the store. YAML needs the
package PyYAML, which is asked for by name where it is missing.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from typing import Any, NamedTuple

from hicache.errors import InputError
from scenario.names import nearest
from scenario.sizes import Size, parse_size

FLAG = "--hicache-storage-backend-extra-config"

_NUMBER = (int, float)
# SGLang's own keys, with the key of a scenario and the types that the server takes.
CACHE_KEYS: dict[str, tuple[str, type | tuple[type, ...]]] = {
    "prefetch_threshold": ("prefetch.threshold_tokens", int),
    "prefetch_timeout_base": ("prefetch.timeout_base_s", _NUMBER),
    "prefetch_timeout_per_ki_token": ("prefetch.timeout_per_ki_token_s", _NUMBER),
    "prefetch_timeout_max": ("prefetch.timeout_max_s", _NUMBER),
    "tp_lcm_size": ("ranks.tp_lcm_size", int),
}
# Keys that change no decision of the cache, or say how large the store is (`Extra.l3`).
_SIZE_KEYS = ("max_size", "global_segment_size")
_STORE_KEYS = (
    "backend_name", "module_path", "class_name", "interface_v1", "hicache_storage_pass_prefix_keys",
    "file_storage_path", "min_free_space", "eviction_ratio", "enable_metadata_cache",
    "metadata_ttl",
)  # fmt: skip


class Extra(NamedTuple):
    """`options`: by dotted key. `l3`: how much the store holds, if it was said. `store`: its own
    keys with their values. `notes`: what must be known of it.
    """

    options: dict[str, object]
    l3: Size | None
    store: dict[str, object]
    notes: tuple[str, ...]


def read_extra_config(text: str, version: str) -> Extra:
    """Read what stood behind the flag. Raises InputError where the server would refuse it, and for
    a key that is nearly one of SGLang's.
    """
    config = _parsed(text)
    options: dict[str, object] = {}
    store: dict[str, object] = {}
    notes: list[str] = []
    size: Size | None = None
    for key, value in config.items():
        if key in CACHE_KEYS and not (key == "prefetch_timeout_max" and version == "0.5.9"):
            dotted, kind = CACHE_KEYS[key]
            _check_type(key, value, kind)
            options[dotted] = float(value) if kind is _NUMBER else value
        elif key in _SIZE_KEYS:
            size = _store_size(key, value) or size
            store[key] = value
        else:
            _refuse_near(key)
            store[key] = value
            if key == "prefetch_timeout_max":
                notes.append("prefetch_timeout_max: SGLang 0.5.9 does not know it and ignores it")
    return Extra(options, size, store, tuple(notes))


def read_mapping(text: str, flag: str) -> dict[str, Any]:
    """The mapping in `text` (JSON), or in the file behind its `@`."""
    if not text.startswith("@"):
        return _mapping(_json(text, flag), flag, flag)
    return read_file(text[1:], flag)


def read_file(path: str, flag: str) -> dict[str, Any]:
    """The mapping in a JSON, TOML or YAML file, told by its ending."""
    ending = os.path.splitext(path)[1].lower()
    if ending not in (".json", ".toml", ".yaml", ".yml"):
        raise InputError(
            f"{flag}: {path}: it must end in .json, .toml, .yaml or .yml, by which its format is "
            "told"
        )
    try:
        with open(os.path.expanduser(path), encoding="utf-8") as opened:
            text = opened.read()
    except OSError as error:
        raise InputError(f"{flag}: {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{flag}: {path}: not a text in UTF-8 (byte {error.start})") from None
    if ending == ".json":
        return _mapping(_json(text, f"{flag}: {path}"), flag, path)
    if ending == ".toml":
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"{flag}: {path}: not valid TOML: {error}") from None
    return _mapping(_yaml(text, flag, path), flag, path)


def _parsed(text: str) -> dict[str, Any]:
    return read_mapping(text, FLAG)


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        hint = "" if "@" in where or text.startswith(("{", "[")) else "; a file is written as @FILE"
        raise InputError(f"{where}: not valid JSON: {error}{hint}") from None


def _yaml(text: str, flag: str, path: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise InputError(
            f"{flag}: {path}: YAML needs PyYAML: pip install 'hicache-lab[yaml]', or write it as "
            "JSON or TOML"
        ) from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{flag}: {path}: not valid YAML: {reason}") from None


def _mapping(value: Any, flag: str, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        source = "" if where == flag else f" {where}:"
        raise InputError(f"{flag}:{source} it must be an object of keys and values, not {value!r}")
    return {str(key): inner for key, inner in value.items()}


def _check_type(key: str, value: object, kind: type | tuple[type, ...]) -> None:
    if not isinstance(value, kind) or isinstance(value, bool):
        wanted = "a whole number" if kind is int else "a number"
        raise InputError(f"{FLAG}: {key} is {value!r}: it must be {wanted}")
    assert isinstance(value, (int, float))
    if value < 0:
        raise InputError(f"{FLAG}: {key} is {value!r}: it must not be negative")


def _refuse_near(key: str) -> None:
    """A key that is nearly one of SGLang's is a mistake: the server would hand it to the store,
    which ignores it.
    """
    import difflib

    known = (*CACHE_KEYS, *_STORE_KEYS)
    if key not in known and difflib.get_close_matches(key, known, n=1, cutoff=0.87):
        raise InputError(f"{FLAG}: unknown key {key}{nearest(key, known)}")


_LETTERS = {"": 1} | {
    letter + binary: (1024 if binary else 1000) ** power
    for power, letter in enumerate("kmgt", start=1)
    for binary in ("", "i")
}


def _store_size(key: str, value: object) -> Size | None:
    """How much a file store (`max_size`) or a segment of Mooncake may hold; None without a limit.

    Mooncake reads `4gb` as 4 * 2^30 bytes.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        count = int(value)
    else:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]i?|)b?", str(value).strip().lower())
        if match is None:
            raise InputError(f"{FLAG}: {key} is {value!r}: it must be a size, as 200G or 1Gi")
        unit = match[2]
        if key == "global_segment_size" and unit and not unit.endswith("i"):
            unit += "i"
        count = int(float(match[1]) * _LETTERS[unit])
    return parse_size(f"{count}B", key) if count > 0 else None
