"""WavLM (Chen et al. 2022) as its authors published it, in s3prl and in many copies.

As in `wavlm.py`, with tokens before the batch; the gate can be absent.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...terms import Terms
from ..attend import attend
from ..drop_probability import drop_probability
from ..heads import project_heads
from . import wavlm
from .buckets import rows_of_buckets

__all__ = ["MultiheadAttention"]


class MultiheadAttention(wavlm.Attention):
    """For `MultiheadAttention` of `wavlm.modules`.

    Given a `position_bias` of all pairs, more or fewer keys than queries, or what fairseq decodes
    with, it runs as before. Weights are those before dropout, in training too.
    """

    signatures = {
        "forward": (
            "self", "query", "key", "value", "key_padding_mask", "incremental_state",
            "need_weights", "static_kv", "attn_mask", "before_softmax", "need_head_weights",
            "position_bias",
        ),
        "_relative_positions_bucket": ("self", "relative_positions", "bidirectional"),
    }  # fmt: skip
    scheme = "gated T5 bias, or T5 bias"
    weights_dropout = "dropout_module"
    has_relative_attention_bias: bool
    gru_rel_pos: bool
    add_zero_attn: bool
    bias_k: Any
    dropout_module: nn.Dropout
    # In the first layer.
    relative_attention_bias: Any
    # Where there is a gate.
    grep_linear: Any
    grep_a: Any
    # By other names here.
    dropout: Any
    gru_rel_pos_linear: Any
    gru_rel_pos_const: Any
    rel_attn_embed: Any

    @classmethod
    def unsupported(cls, module: Any) -> str | None:
        if module.bias_k is not None or module.add_zero_attn:
            return "it has keys that are no tokens (add_bias_kv or add_zero_attn)"
        return super().unsupported(module) if module.has_relative_attention_bias else None

    @classmethod
    def described(cls, module: Any) -> str:
        if module.gru_rel_pos:
            return "gated T5 bias"
        # A later layer does not know.
        return "T5 bias" + ("" if module.has_relative_attention_bias else ", if the first has one")

    def forward(
        self,
        query: Float[Tensor, "i b e"],
        key: Tensor | None,
        value: Tensor | None,
        key_padding_mask: Tensor | None = None,
        incremental_state: Any = None,
        need_weights: bool = True,
        static_kv: bool = False,
        attn_mask: Tensor | None = None,
        before_softmax: bool = False,
        need_head_weights: bool = False,
        position_bias: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        is_dense = position_bias is not None and position_bias.ndim != 2
        decodes = incremental_state is not None or static_kv or attn_mask is not None
        if is_dense or decodes or key is None or value is None or len(key) != len(query):
            if position_bias is not None and not is_dense:
                position_bias = _of_all_pairs(position_bias, query, query if key is None else key)
            return self.original_forward(
                query, key, value, key_padding_mask, incremental_state, need_weights, static_kv,
                attn_mask, before_softmax, need_head_weights, position_bias,
            )  # fmt: skip
        if position_bias is None and self.has_relative_attention_bias:
            position_bias = self._table(query)
        x = query.transpose(0, 1)
        (q,) = project_heads(x, self.q_proj, width=self.head_dim)
        (k,) = project_heads(key.transpose(0, 1), self.k_proj, width=self.head_dim)
        (v,) = project_heads(value.transpose(0, 1), self.v_proj, width=self.head_dim)
        padding = None
        if key_padding_mask is not None:
            padding = key_padding_mask[:, None, None]
            padding = padding if padding.is_floating_point() else padding == 0
        output, weights = attend(
            q, k, v, self._terms(position_bias, x), mask=padding, scale=self.scaling,
            dropout=drop_probability(self.dropout_module), window=self.window,
            weights=need_weights or need_head_weights,
        )  # fmt: skip
        if weights is not None:
            weights = weights.mean(1)
        return self.out_proj(output.flatten(2)).transpose(0, 1), weights, position_bias

    def _terms(self, bias: Tensor | None, x: Tensor) -> Terms:
        if bias is None:
            return Terms()
        gates = None
        if self.gru_rel_pos:
            gates = wavlm.gates(x, self.grep_linear, self.grep_a, width=self.head_dim)
        return wavlm.gated_terms(bias, gates, scale=self.scaling)

    def _table(self, hidden_states: Float[Tensor, "i b e"]) -> Tensor:
        reach = min(self.max_distance, hidden_states.shape[0])
        offsets = torch.arange(-reach, reach + 1, device=hidden_states.device)
        buckets = self._relative_positions_bucket(offsets)
        return rows_of_buckets(self.relative_attention_bias, buckets)


def _of_all_pairs(
    table: Float[Tensor, "h r"], query: Float[Tensor, "i b e"], key: Float[Tensor, "j b e"]
) -> Float[Tensor, "bh i j"]:
    """A table that the first layer handed on, as the original's layers take it."""
    reach = table.shape[1] // 2
    queries, keys = (torch.arange(len(x), device=table.device) for x in (query, key))
    rows = (keys - queries[:, None]).clamp(-reach, reach) + reach
    return table[:, rows].repeat(query.shape[1], 1, 1)
