"""A transformers model for a geometry or a local folder, on the paged pool.

Random weights have a seed, so that two runs compute the same; local weights come from a folder with
a config.json and safetensors. Nothing is fetched. Refuses MLA and families whose modelling code has
another attention than this pool's.
"""

from __future__ import annotations

import copy
import os
from typing import Any, Literal

import msgspec
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

import scenario
from hicache.errors import InputError
from hw.model.attention import NAME
from scenario.geometry import canonical_name, model_names

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "mixtral")


def config_of(table: dict[str, Any]) -> PretrainedConfig:
    """A transformers configuration from the keys of a config.json. Raises InputError."""
    family = table.get("model_type")
    if family not in FAMILIES:
        raise InputError(f"model_type {family!r}: it must be {', '.join(FAMILIES)} to run here")
    keys = {key: value for key, value in table.items() if key not in ("model_type", "torch_dtype")}
    try:
        return AutoConfig.for_model(family, **keys)
    except (ValueError, TypeError, StrictDataclassError) as error:
        raise InputError(f"a {family} model of this configuration cannot be: {error}") from None


def read_config(name_or_path: str) -> dict[str, Any]:
    """The keys of a known model's configuration, of a config.json, or of the one in a folder.

    Raises InputError.
    """
    name = canonical_name(name_or_path, os.getcwd())
    if name in model_names():
        return _read(os.path.join(os.path.dirname(scenario.__file__), "models.json"))[name][
            "config"
        ]
    return _read(os.path.join(name, "config.json") if os.path.isdir(name) else name)


def make_model(
    name_or_path: str,
    device: torch.device,
    dtype: torch.dtype,
    *,
    weights: Literal["random", "local"] = "random",
    seed: int = 0,
) -> PreTrainedModel:
    """A model known by name, of a config.json, or in a local folder. Raises InputError."""
    if weights == "local":
        return local_model(name_or_path, device, dtype)
    return random_model(config_of(read_config(name_or_path)), device, dtype, seed)


def random_model(
    config: PretrainedConfig, device: torch.device, dtype: torch.dtype, seed: int
) -> PreTrainedModel:
    """A model of `config` with random weights, made where it is to run."""
    config = copy.deepcopy(config)  # a model writes its attention's name into it
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.device(device):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=NAME)
    return _at_rest(model, device)


def local_model(folder: str, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """The model in `folder`: config.json and weights. Raises InputError."""
    config_of(read_config(folder))
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation=NAME, local_files_only=True
        )
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: no model that can be loaded: {error}") from None
    return _at_rest(model, device)


def _read(file: str) -> dict[str, Any]:
    try:
        with open(file, "rb") as opened:
            return msgspec.json.decode(opened.read(), type=dict[str, Any])
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise InputError(f"{file}: not valid JSON: {error}") from None


def _at_rest(model: Any, device: torch.device) -> PreTrainedModel:
    return model.to(device).eval().requires_grad_(False)
