"""The shape of a model, as far as its KV cache, its weights and its arithmetic depend on it.

Every geometry comes from a Hugging Face `config.json` (`scenario.model_config`): the known models'
(excerpts with their sources in `models.json`) and any other's go the same way, so that a known
model and its configuration cannot disagree.
"""

from __future__ import annotations

import os
from typing import Any, Literal, cast

import msgspec

from hicache.errors import InputError
from scenario.names import nearest

# Bytes of one element of the KV cache.
KV_ITEMSIZES: dict[str, int] = {"bf16": 2, "fp16": 2, "fp8": 1, "fp32": 4}


class ModelGeometry(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of one model. Sizes in elements unless the name says bytes; counts are exact."""

    name: str
    # Where the shape was taken from.
    source: str
    # "mha": K and V for each KV head (also grouped, GQA). "mla": one latent for all heads of a
    # layer.
    kind: Literal["mha", "mla"]
    layers: int
    hidden_size: int
    intermediate_size: int
    q_heads: int
    kv_heads: int
    # Of a query and a key; of a value.
    head_dim: int
    v_head_dim: int
    # mla only, else 0: the latent's compressed part and the key part that carries the position.
    kv_lora_rank: int
    rope_head_dim: int
    vocab_size: int
    # Whether the input embedding is also the output head.
    tied_embeddings: bool
    # Mixture of experts, else 0: layers that have experts, experts of such a layer, those chosen
    # for a token, and parameters of one expert.
    moe_layers: int
    experts: int
    experts_per_token: int
    expert_parameter_count: int
    # All parameters, and those that one token passes through; both with the embeddings.
    parameter_count: int
    active_parameter_count: int
    weight_bytes: int
    kv_dtype: str
    max_context_tokens: int

    @property
    def kv_itemsize(self) -> int:
        """Bytes of one element of the KV cache."""
        return KV_ITEMSIZES[self.kv_dtype]

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV cache of one token, all layers.

        mha: K and V of every KV head. mla: one latent and one positional key a layer, kept once for
        K and V (DeepSeek-V2, arXiv 2405.04434, section 2.1).
        """
        if self.kind == "mla":
            elements = self.kv_lora_rank + self.rope_head_dim
        else:
            elements = self.kv_heads * (self.head_dim + self.v_head_dim)
        return self.layers * elements * self.kv_itemsize

    @property
    def dense_flops_per_token(self) -> int:
        """Floating point operations of one token outside attention: 2 for each active parameter.

        The input embedding is a look-up and not counted; the output head is, though a prefill
        computes it for the last token only (`head_flops` is its part).
        """
        lookup = 0 if self.tied_embeddings else self.vocab_size * self.hidden_size
        return 2 * (self.active_parameter_count - lookup)

    @property
    def head_flops(self) -> int:
        """Floating point operations of the output head for one token."""
        return 2 * self.vocab_size * self.hidden_size

    @property
    def attention_flops_per_pair(self) -> int:
        """Floating point operations of attention for one token and one token it sees, all layers.

        2 for each multiply-add of the score (head_dim) and of the weighted sum (v_head_dim), in
        every query head.
        """
        return 2 * self.layers * self.q_heads * (self.head_dim + self.v_head_dim)

    def with_kv_dtype(self, kv_dtype: str) -> ModelGeometry:
        """This model with its KV cache in `kv_dtype`; "auto" leaves its own. Raises InputError."""
        if kv_dtype == "auto":
            return self
        if kv_dtype not in KV_ITEMSIZES:
            raise InputError(
                f"kv_dtype is {kv_dtype!r}: it must be auto, {', '.join(KV_ITEMSIZES)}"
            )
        return msgspec.structs.replace(self, kv_dtype=kv_dtype)


def model_names() -> list[str]:
    """The models that are known by name."""
    return list(_known_models())


def load_geometry(name_or_path: str | os.PathLike[str], kv_dtype: str = "auto") -> ModelGeometry:
    """The geometry of a known model or of a Hugging Face configuration.

    `name_or_path`: a name in any case, with or without its organisation (`Qwen/Qwen3-8B`,
    `qwen3-8b`), or the path of a config.json or of a folder that holds one. `kv_dtype`: of the KV
    cache, "auto" for the model's own. Raises InputError for an unknown model, with the nearest
    names, and for a configuration that is missing, malformed or not understood, with the key.
    """
    from scenario.model_config import geometry_from_config

    name = canonical_name(os.fspath(name_or_path), os.getcwd())
    known = _known_models().get(name)
    if known is not None:
        geometry = geometry_from_config(
            known["config"], name, known["source"], f"models.json: {name}"
        )
        return geometry.with_kv_dtype(kv_dtype)
    file = os.path.join(name, "config.json") if os.path.isdir(name) else name
    config = _read_json(file)
    folder = os.path.basename(os.path.dirname(file))
    model = str(config.get("_name_or_path") or folder or "config.json")
    return geometry_from_config(config, model, file, file).with_kv_dtype(kv_dtype)


def canonical_name(name: str, folder: str) -> str:
    """A known model's name in its own spelling, or the absolute path of a configuration.

    A path is relative to `folder`. Raises InputError for what is neither a known model nor an
    existing path.
    """
    wanted = name.strip().lower()
    for model, known in _known_models().items():
        for spelling in (known["repository"], *known["aliases"]):
            if wanted in (spelling.lower(), spelling.lower().rpartition("/")[2]):
                return model
    path = os.path.abspath(os.path.join(folder, os.path.expanduser(name.strip())))
    if wanted and os.path.exists(path):
        return path
    if wanted.endswith(".json") or wanted.startswith(("/", "./", "../", "~")):
        raise InputError(f"model.name is {name}: no such file or folder ({path})")
    models = _known_models()
    raise InputError(
        f"model.name is {name!r}: no known model{nearest(wanted.rpartition('/')[2], models)}; "
        f"known are {', '.join(models)}; for another give the path of its config.json"
    )


_models: dict[str, dict[str, Any]] = {}


def _known_models() -> dict[str, dict[str, Any]]:
    if not _models:
        file = os.path.join(os.path.dirname(os.path.abspath(__file__)), "models.json")
        _models.update(cast("dict[str, dict[str, Any]]", _read_json(file)))
    return _models


def _read_json(file: str) -> dict[str, Any]:
    try:
        with open(file, "rb") as opened:
            decoded = msgspec.json.decode(opened.read())
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise InputError(f"{file}: not valid JSON: {error}") from None
    if not isinstance(decoded, dict):
        raise InputError(f"{file}: not a table of keys and values")
    return decoded
