"""torchaudio's WavLM (Chen et al. 2022): T5's bias, which a gate of each query turns up or down.

As in `wavlm.py`; projections are those of a `nn.MultiheadAttention`, and the gate can be absent.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ...terms import Terms
from ..attend import attend
from ..heads import split_qkv
from . import wavlm

__all__ = ["SelfAttention"]


class SelfAttention(wavlm.Attention):
    """For `WavLMSelfAttention`; given a `position_bias` of all pairs, it runs as before.

    It does so too with an `attention_mask`, which the original refuses. Where the first layer was
    dropped, there are no positions, and in the original no padding then.
    """

    signatures = {
        "forward": ("self", "query", "key_padding_mask", "attention_mask", "position_bias"),
        "_relative_positions_bucket": ("self", "relative_positions", "bidirectional"),
    }
    scheme = "gated T5 bias, or T5 bias"
    attention: nn.MultiheadAttention
    gru_rel_pos: bool
    rel_attn_embed: nn.Module | None
    # Not here: `attention` has them.
    scaling: Any
    q_proj: Any
    k_proj: Any
    v_proj: Any
    out_proj: Any

    @classmethod
    def described(cls, module: Any) -> str:
        return "gated T5 bias" if module.gru_rel_pos else "T5 bias"

    def forward(
        self,
        query: Tensor,
        key_padding_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_bias: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        if position_bias is None and self.rel_attn_embed is not None:
            position_bias = self._table(query)
        is_dense = position_bias is not None and position_bias.ndim != 2
        if is_dense or attention_mask is not None:
            return self.original_forward(query, key_padding_mask, attention_mask, position_bias)
        padding = None
        if position_bias is not None and key_padding_mask is not None:
            padding = key_padding_mask[:, None, None]
            padding = ~padding if padding.dtype == torch.bool else padding
        projected = linear(query, self.attention.in_proj_weight, self.attention.in_proj_bias)
        q, k, v = split_qkv(projected, heads=self.num_heads)
        output, _ = attend(
            q, k, v, self._terms(position_bias, query),
            mask=padding, scale=self.head_dim**-0.5,
            dropout=self.dropout if self.training else 0.0, window=self.window,
        )  # fmt: skip
        return self.attention.out_proj(output.flatten(2)), position_bias

    def _terms(self, bias: Tensor | None, query: Tensor) -> Terms:
        if bias is None:
            return Terms()
        gates = self._gate(query) if self.gru_rel_pos else None
        return wavlm.gated_terms(bias, gates, scale=self.head_dim**-0.5)
