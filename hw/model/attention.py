"""The attention function that transformers' models call, on the paged pool.

transformers lets a function be registered under a name; a model that is built with that name calls
it in every layer with this step's Q, K and V, and asks for no mask and no cache. Ours puts K and V
into L1 pages and attends over the pages of each request, so that the modelling code stays
transformers' own.

    model.layers[i].self_attn --(query, key, value)--> PagedAttention.__call__(i, ...)

Each attention module is given its `PagedAttention` when the model is built: nothing is global but
the registered name. Refuses sliding windows, soft caps and whatever else an attention may want that
is not computed here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn
from transformers import AttentionInterface, PreTrainedModel

from hicache.errors import InputError
from hw.model import paged_attention
from hw.model.paged_attention import Heads, Rows

NAME = "hicache_paged"
_ATTRIBUTE = "hicache_attention"
WaitLayer = Callable[[int], object]


class PagedKV(Protocol):
    """An L1 pool, as far as attention sees it: a tensor of shape
    (pages, page_size, kv_heads, head_dim) for each layer, contiguous.
    """

    @property
    def k(self) -> Any: ...

    @property
    def v(self) -> Any: ...


class Batch(NamedTuple):
    """One step, flat: first `prefill_tokens` tokens of chunks, then one of each decoding request.

    `slots`: int32 of shape (tokens,), where each token's K and V go.
    """

    prefill_tokens: int
    slots: torch.Tensor
    rows: Rows


class PagedAttention:
    """Attention of all layers of one model over one pool. `batch` is set before each forward.

    `wait_layer(i)`, where it is set, is called before layer i reads its pages: the part of a
    transfer that is still under way makes the current stream wait for the event of that layer.
    """

    def __init__(self, heads: Heads, pool: PagedKV) -> None:
        self.heads = heads
        self.pool = pool
        self.batch: Batch | None = None
        self.wait_layer: WaitLayer | None = None

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """q, k, v: (1, heads, tokens, head_dim). Returns (1, tokens, q_heads, head_dim_v)."""
        batch, heads = self.batch, self.heads
        assert batch is not None, "attention outside of a step"
        k_pool, v_pool = self.pool.k[layer], self.pool.v[layer]
        q, k, v = (each[0].transpose(0, 1) for each in (q, k, v))
        if self.wait_layer is not None:
            self.wait_layer(layer)
        paged_attention.store(heads, k, v, k_pool, v_pool, batch.slots)
        shape = (q.shape[0], heads.q_heads, heads.head_dim_v)
        out = torch.empty(shape, dtype=q.dtype, device=q.device)
        split = batch.prefill_tokens
        if split:
            paged_attention.prefill(
                heads, q[:split], k_pool, v_pool, batch.rows, scale, out[:split]
            )
        if split < q.shape[0]:
            paged_attention.decode(heads, q[split:], k_pool, v_pool, batch.rows, scale, out[split:])
        return out[None]


def paged_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: object,
) -> tuple[torch.Tensor, None]:
    """What transformers calls."""
    attend: PagedAttention = getattr(module, _ATTRIBUTE)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return attend(module.layer_idx, query, key, value, scale), None  # pyright: ignore


AttentionInterface.register(NAME, paged_attention_forward)


def attach(model: PreTrainedModel, attention: PagedAttention) -> None:
    """Give every attention module of `model`, which was built with `NAME`, its pool.

    Raises InputError for a model that has an attention of another kind.
    """
    used = model.config._attn_implementation
    if used != NAME:
        raise InputError(f"{type(model).__name__} was built with attention {used}, not {NAME}")
    if getattr(model.config, "sliding_window", None) is not None:
        raise InputError(f"{type(model).__name__} has a sliding window: not computed here")
    found = 0
    for name, module in model.named_modules():
        if not name.endswith("self_attn"):
            continue
        for wish in ("attn_logit_softcapping", "sinks"):
            if getattr(module, wish, None) is not None:
                raise InputError(f"{name} of {type(model).__name__} has {wish}: not computed here")
        setattr(module, _ATTRIBUTE, attention)
        found += 1
    layers = len(attention.pool.k)
    if found != layers:
        raise InputError(
            f"{type(model).__name__} has {found} attention layers, its KV pool has {layers}"
        )
