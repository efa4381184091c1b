"""MPT (MosaicML 2023): ALiBi, each bias counted from the last key that there can be."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..adapted import Adapted
from ..attend import attend
from ..cache_argument import takes_cache
from ..heads import split_heads
from .alibi import AlibiModel, first_query

__all__ = ["Attention", "Block", "Model"]


class Attention(Adapted):
    """For `MptAttention`.

    For one query, or with a mask of pairs or the bias of a model that is not adapted, it runs as
    before.
    """

    scheme = "ALiBi"
    together = True
    weights_dropout = "attn_dropout_p"
    signatures = {
        "forward": (
            "self", "hidden_states", "position_bias", "cache", "attention_mask", "kwargs",
        )
    }  # fmt: skip
    layer_idx: int
    head_dim: int
    softmax_scale: float
    attn_dropout_p: float
    clip_qkv: float | None
    Wqkv: nn.Module
    out_proj: nn.Module

    @takes_cache
    def forward(
        self,
        hidden_states: Tensor,
        position_bias: Tensor,
        cache: Any = None,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        # For one query the original is as short, and faster by what a call of relpos costs.
        one = hidden_states.shape[1] == 1
        if one or position_bias.ndim == 3 or attention_mask is None or attention_mask.shape[-2] > 1:
            bias = position_bias if position_bias.ndim == 3 else position_bias[0]
            return super().forward(hidden_states, bias, cache, attention_mask, **kwargs)
        projected = self.Wqkv(hidden_states)
        if self.clip_qkv:
            projected = projected.clamp(min=-self.clip_qkv, max=self.clip_qkv)
        q, k, v = (split_heads(x, width=self.head_dim) for x in projected.chunk(3, dim=2))
        start = first_query(cache, queries=q.shape[2], layer=self.layer_idx)
        if cache is not None:
            k, v = cache.update(k, v, self.layer_idx)
        bias = position_bias[..., max(0, position_bias.shape[-1] - k.shape[2]) :]
        output, weights = attend(
            q, k, v, mask=bias.masked_fill(attention_mask, -torch.inf),
            causal=True, query_start=start, scale=self.softmax_scale,
            dropout=self.attn_dropout_p if self.training else 0.0,
            weights=bool(kwargs.get("output_attentions")),
        )  # fmt: skip
        return self.out_proj(output.flatten(2)), weights


class Block(Adapted):
    """For `MptBlock`: tells its attention, which always has weights, whether they are wanted."""

    together = True
    signatures = {
        "forward": (
            "self", "hidden_states", "position_bias", "attention_mask", "layer_past", "use_cache",
            "output_attentions", "kwargs",
        )
    }  # fmt: skip
    norm_1: nn.Module
    attn: nn.Module
    resid_attn_dropout: nn.Module
    norm_2: nn.Module
    ffn: nn.Module

    def forward(
        self,
        hidden_states: Tensor,
        position_bias: Tensor,
        attention_mask: Tensor,
        layer_past: Any = None,
        use_cache: bool = False,
        output_attentions: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        x, weights = self.attn(
            self.norm_1(hidden_states), position_bias=position_bias, attention_mask=attention_mask,
            cache=layer_past, output_attentions=output_attentions,
        )  # fmt: skip
        x = self.resid_attn_dropout(x) + hidden_states
        return self.ffn(self.norm_2(x), x), weights


class Model(AlibiModel):
    """For `MptModel`: no mask of all pairs, but `(b, 1, 1, j)`."""

    signatures = AlibiModel.signatures | {
        "build_mpt_alibi_tensor": (
            "self", "num_heads", "sequence_length", "alibi_bias_max", "device",
        )
    }  # fmt: skip

    def narrowed(self, attention_mask: Tensor | None, x: Tensor | None, past: Any) -> Tensor | None:
        """As this model's masks are, true for what is hidden."""
        if attention_mask is not None and attention_mask.ndim == 4 and x is not None:
            # One row for all queries would mean that they are causal beside it.
            return attention_mask.expand(-1, -1, x.shape[1], -1)
        mask = super().narrowed(attention_mask, x, past)
        return ~mask if mask is not None and mask.ndim == 4 else mask

    def build_mpt_alibi_tensor(
        self,
        num_heads: int,
        sequence_length: int,
        alibi_bias_max: int = 8,
        device: torch.device | None = None,
    ) -> Tensor:
        """`(1, h, 1, j)`, which the original attention refuses: it would not be causal."""
        original: Any = super()
        alibi = original.build_mpt_alibi_tensor(num_heads, sequence_length, alibi_bias_max, device)
        return alibi[None]
