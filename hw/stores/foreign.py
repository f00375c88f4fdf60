"""Finding a class of SGLang's HiCacheStorage interface, and what it is told of its server.

The interface is taken as it is used, by its methods: a class need not inherit from SGLang's, which
is not installed where there is no GPU. Finding is all that is done here; the class's code runs when
its module is imported, so that the caller had better do that behind a fence.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

from hicache.errors import InputError
from hw.stores.names import Owner
from hw.stores.page_order import MemoryLayout

Interface = Literal["generic", "v1"]
_NEEDED: dict[Interface, tuple[str, ...]] = {
    "generic": ("batch_exists", "batch_get", "batch_set"),
    "v1": ("batch_exists", "batch_get_v1", "batch_set_v1", "register_mem_pool_host"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageConfig:
    """What a class is told of its server, by SGLang's names: for where SGLang is not installed."""

    tp_rank: int
    tp_size: int
    pp_rank: int
    pp_size: int
    attn_cp_rank: int
    attn_cp_size: int
    is_mla_model: bool
    enable_storage_metrics: bool
    is_page_first_layout: bool
    model_name: str
    extra_config: dict[str, Any]
    tp_lcm_size: int | None = None
    should_split_heads: bool = False
    dp_rank: int = 0


def load_class(module_path: str, class_name: str, interface: Interface) -> Callable[..., Any]:
    """The class. Raises InputError."""
    where = f"dynamic store {module_path}.{class_name}"
    try:
        module = importlib.import_module(module_path)
    except ImportError as error:
        raise InputError(f"{where}: {module_path} cannot be imported: {error}") from error
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        raise InputError(f"{where}: {module_path} has no class {class_name}")
    for method in _NEEDED[interface]:
        if not callable(getattr(found, method, None)):
            raise InputError(
                f"{where}: it has no {method}, which {interface} calls need; "
                f"they are {', '.join(_NEEDED[interface])}"
            )
    return found


def storage_config(owner: Owner, extra: dict[str, Any], memory_layout: MemoryLayout) -> Any:
    """The configuration object: SGLang's own where it is installed, else one that looks like it."""
    values = {
        "tp_rank": owner.tp_rank,
        "tp_size": owner.tp_size,
        "pp_rank": owner.pp_rank,
        "pp_size": owner.pp_size,
        "attn_cp_rank": owner.cp_rank,
        "attn_cp_size": owner.cp_size,
        "is_mla_model": owner.kind == "mla",
        "enable_storage_metrics": False,
        "is_page_first_layout": memory_layout in ("page_first", "page_first_direct"),
        "model_name": owner.model,
        "extra_config": extra,
    }
    try:
        module = importlib.import_module("sglang.srt.mem_cache.hicache_storage")
        theirs: Any = module.HiCacheStorageConfig
        known = {field.name for field in fields(theirs)}
        return theirs(**{key: value for key, value in values.items() if key in known})
    except Exception:  # not installed, or not importable on this machine
        return StorageConfig(**values)
