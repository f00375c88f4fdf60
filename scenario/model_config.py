"""A Hugging Face `config.json` as a `ModelGeometry`: what each key means in each family of models.

What is not one of the `FAMILIES`, or has an attention or quantisation that is not understood, is
refused: it would have another KV cache or other weights than computed here.
"""

from __future__ import annotations

import os
from typing import Any, cast

import msgspec

from hicache.errors import InputError
from scenario.geometry import ModelGeometry

# torch's names of element types: our name of a KV cache of that type, bytes of one weight.
_DTYPES: dict[str, tuple[str, int]] = {
    "bfloat16": ("bf16", 2),
    "float16": ("fp16", 2),
    "float8_e4m3fn": ("fp8", 1),
    "float32": ("fp32", 4),
}
# `model_type` of the configurations that are understood.
FAMILIES = (
    "llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "mixtral", "deepseek_v2", "deepseek_v3",
)  # fmt: skip


def geometry_from_config(config: Any, name: str, source: str, place: str) -> ModelGeometry:
    """The geometry that a Hugging Face configuration (a decoded config.json) describes.

    `source`: where it comes from; a JSON file of another name than config.json gives its own name
    to the model, instead of `name`. `place` says in errors where the configuration stands. Raises
    InputError for a missing or bad key and for a family, quantisation or attention that is not
    understood.
    """
    stem, extension = os.path.splitext(os.path.basename(source))
    if extension.lower() == ".json" and stem.lower() != "config":
        name = stem
    keys = _Keys(config, place)
    family = keys.choice(
        "model_type",
        FAMILIES,
        "; a dense model with grouped queries and nothing else of its own can be read with "
        "model_type llama in a copy of the file",
    )
    _refuse_sliding_window(keys)
    _refuse_foreign_keys(keys, family)
    hidden, layers = keys.whole("hidden_size"), keys.whole("num_hidden_layers")
    intermediate, vocab = keys.whole("intermediate_size"), keys.whole("vocab_size")
    heads = keys.whole("num_attention_heads")
    if family in ("deepseek_v2", "deepseek_v3"):
        attention = _latent_attention(keys, hidden, heads)
    else:
        attention = _head_attention(keys, family, hidden, heads)
    experts = _experts(keys, family, hidden, intermediate, layers)
    dense_mlp = 3 * hidden * intermediate + (
        2 * intermediate + hidden if keys.is_true("mlp_bias") else 0
    )
    # Two norms a layer and one behind the last.
    norms = (2 * layers + 1) * hidden
    tied = keys.is_true("tie_word_embeddings")
    embeddings = vocab * hidden * (1 if tied else 2)
    always = (
        embeddings
        + norms
        + layers * attention.parameters
        + (layers - experts.layers) * dense_mlp
        + experts.layers * experts.always
    )
    count = always + experts.layers * experts.count * experts.one
    active = always + experts.layers * experts.per_token * experts.one
    kv_dtype, itemsize = _element_type(keys)
    quantised_bits = _quantised_bits(keys)
    if quantised_bits:
        # Quantisers leave the embeddings, norms and output head as they are.
        kept = embeddings + norms
        weight_bytes = kept * itemsize + (count - kept) * quantised_bits // 8
    else:
        weight_bytes = count * itemsize
    return ModelGeometry(
        name=name,
        source=source,
        kind="mla" if attention.latent else "mha",
        layers=layers,
        hidden_size=hidden,
        intermediate_size=intermediate,
        q_heads=heads,
        kv_heads=attention.kv_heads,
        head_dim=attention.head_dim,
        v_head_dim=attention.v_head_dim,
        kv_lora_rank=attention.latent,
        rope_head_dim=attention.rope_head_dim,
        vocab_size=vocab,
        tied_embeddings=tied,
        moe_layers=experts.layers,
        experts=experts.count,
        experts_per_token=experts.per_token,
        expert_parameter_count=experts.one,
        parameter_count=count,
        active_parameter_count=active,
        weight_bytes=weight_bytes,
        kv_dtype=kv_dtype,
        max_context_tokens=keys.whole("max_position_embeddings"),
    )


class _Attention(msgspec.Struct, frozen=True):
    # Of one layer.
    parameters: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    latent: int = 0
    rope_head_dim: int = 0


class _Experts(msgspec.Struct, frozen=True):
    layers: int = 0
    count: int = 0
    per_token: int = 0
    # Parameters of one expert; and of what every token passes in such a layer: router and shared
    # experts.
    one: int = 0
    always: int = 0


def _head_attention(keys: _Keys, family: str, hidden: int, heads: int) -> _Attention:
    kv_heads = keys.whole("num_key_value_heads", heads)
    if heads % kv_heads:
        raise keys.error("num_key_value_heads", f"it must divide num_attention_heads, {heads}")
    if not keys.has("head_dim") and hidden % heads:
        raise keys.error(
            "hidden_size", f"no head_dim, and num_attention_heads, {heads}, does not divide it"
        )
    head_dim = keys.whole("head_dim", hidden // heads)
    rows = heads * head_dim + 2 * kv_heads * head_dim
    # Qwen2 has biases on Q, K and V without saying so; where a family says so, the output has one
    # too.
    if family == "qwen2":
        biases = rows
    else:
        biases = rows + hidden if keys.is_true("attention_bias") else 0
    head_norms = 2 * head_dim if family in ("qwen3", "qwen3_moe") else 0
    parameters = hidden * rows + heads * head_dim * hidden + biases + head_norms
    return _Attention(parameters, kv_heads, head_dim, head_dim)


def _latent_attention(keys: _Keys, hidden: int, heads: int) -> _Attention:
    latent, rope = keys.whole("kv_lora_rank"), keys.whole("qk_rope_head_dim")
    nope, v_head_dim = keys.whole("qk_nope_head_dim"), keys.whole("v_head_dim")
    head_dim = nope + rope
    if keys.has("q_lora_rank"):
        q_rank = keys.whole("q_lora_rank")
        query = hidden * q_rank + q_rank + q_rank * heads * head_dim
    else:
        query = hidden * heads * head_dim
    down = hidden * (latent + rope) + latent
    up = latent * heads * (nope + v_head_dim)
    parameters = query + down + up + heads * v_head_dim * hidden
    kv_heads = keys.whole("num_key_value_heads", heads)
    return _Attention(parameters, kv_heads, head_dim, v_head_dim, latent, rope)


def _experts(keys: _Keys, family: str, hidden: int, intermediate: int, layers: int) -> _Experts:
    if family == "mixtral":
        moe_layers, count_key, width, shared = layers, "num_local_experts", intermediate, 0
    elif family == "qwen3_moe":
        dense = keys.whole_list("mlp_only_layers")
        step = keys.whole("decoder_sparse_step", 1)
        moe_layers = sum(
            1 for each in range(layers) if each not in dense and (each + 1) % step == 0
        )
        count_key, width, shared = "num_experts", keys.whole("moe_intermediate_size"), 0
    elif family in ("deepseek_v2", "deepseek_v3") and keys.has("n_routed_experts"):
        first, step = keys.count("first_k_dense_replace", 0), keys.whole("moe_layer_freq", 1)
        moe_layers = sum(1 for each in range(layers) if each >= first and each % step == 0)
        count_key, width = "n_routed_experts", keys.whole("moe_intermediate_size")
        shared = keys.count("n_shared_experts", 0)
    else:
        return _Experts()
    count, per_token = keys.whole(count_key), keys.whole("num_experts_per_tok")
    if per_token > count:
        raise keys.error("num_experts_per_tok", f"it must be at most {count_key}, {count}")
    one = 3 * hidden * width
    # DeepSeek-V3's router adds one correction for each expert.
    router = hidden * count + (count if family == "deepseek_v3" else 0)
    return _Experts(moe_layers, count, per_token, one, router + shared * one)


def _element_type(keys: _Keys) -> tuple[str, int]:
    for key in ("dtype", "torch_dtype"):
        if keys.has(key):
            return _DTYPES[keys.choice(key, tuple(_DTYPES))]
    return _DTYPES["bfloat16"]


def _quantised_bits(keys: _Keys) -> int:
    """Bits of one quantised weight; 0 when the weights are not quantised."""
    if not keys.has("quantization_config"):
        return 0
    inner = _Keys(keys.config["quantization_config"], f"{keys.place}: quantization_config")
    if inner.has("bits"):
        return inner.whole("bits")
    inner.choice("quant_method", ("fp8",))
    return 8


def _refuse_sliding_window(keys: _Keys) -> None:
    window = keys.config.get("sliding_window")
    if window and keys.config.get("use_sliding_window", True):
        raise keys.error(
            "sliding_window", "attention over a window keeps another KV cache and is not understood"
        )


# A key that only the families beside it have: in another, part of the model would go uncounted.
_KEYS_OF_FAMILIES = {
    "kv_lora_rank": ("deepseek_v2", "deepseek_v3"),
    "n_routed_experts": ("deepseek_v2", "deepseek_v3"),
    "num_local_experts": ("mixtral",),
    "num_experts": ("qwen3_moe",),
}


def _refuse_foreign_keys(keys: _Keys, family: str) -> None:
    for key, families in _KEYS_OF_FAMILIES.items():
        # Configurations of dense models may say 0 or 1 experts.
        if keys.config.get(key) not in (None, 0, 1) and family not in families:
            raise keys.error(
                key, f"model_type {family} has none of it; understood with {', '.join(families)}"
            )


class _Keys:
    """A decoded configuration that says which key is missing or bad. A null counts as missing."""

    def __init__(self, config: object, place: str) -> None:
        if not isinstance(config, dict):
            raise InputError(f"{place}: not a table of keys and values")
        self.config = cast("dict[str, object]", config)
        self.place = place

    def has(self, key: str) -> bool:
        return self.config.get(key) is not None

    def error(self, key: str, reason: str) -> InputError:
        return InputError(f"{self.place}: {key} is {self.config.get(key)!r}: {reason}")

    def whole(self, key: str, default: int = 0) -> int:
        """A whole number above 0; `default`, unless 0, where the key is missing."""
        return self.count(key, default or None, 1)

    def count(self, key: str, default: int | None, least: int = 0) -> int:
        value = self.config.get(key)
        if value is None:
            if default is None:
                raise InputError(f"{self.place}: {key} is missing")
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.error(key, f"it must be a whole number, {least} or more")
        return value

    def is_true(self, key: str) -> bool:
        value = self.config.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.error(key, "it must be true or false")
        return value is True

    def choice(self, key: str, allowed: tuple[str, ...], hint: str = "") -> str:
        if not self.has(key):
            raise InputError(f"{self.place}: {key} is missing")
        value = self.config[key]
        if not isinstance(value, str) or value not in allowed:
            raise self.error(key, f"understood are {', '.join(allowed)}{hint}")
        return value

    def whole_list(self, key: str) -> list[int]:
        value = self.config.get(key) or []
        if not isinstance(value, list) or not all(isinstance(each, int) for each in value):
            raise self.error(key, "it must be a list of whole numbers")
        return value
