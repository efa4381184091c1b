"""BLOOM (Scao et al. 2022): ALiBi, with a residual connection inside of its attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers.models.bloom.modeling_bloom import dropout_add

from ..adapted import Adapted
from ..attend import attend
from ..drop_probability import drop_probability
from .alibi import AlibiModel, first_query

__all__ = ["Attention", "Model"]


class Attention(Adapted):
    """For `BloomAttention`.

    For one query, or with the bias of a model that is not adapted, it runs as before.
    """

    scheme = "ALiBi"
    together = True
    weights_dropout = "attention_dropout"
    signatures = {
        "forward": (
            "self", "hidden_states", "residual", "alibi", "attention_mask", "layer_past",
            "use_cache", "output_attentions", "kwargs",
        ),
        "_reshape": ("self", "fused_qkv"),
    }  # fmt: skip
    layer_idx: int
    inv_norm_factor: float
    hidden_dropout: float
    hidden_size: int
    pretraining_tp: int
    slow_but_exact: bool
    attention_dropout: nn.Dropout
    query_key_value: nn.Module
    dense: nn.Linear
    _reshape: Any

    def forward(
        self,
        hidden_states: Tensor,
        residual: Tensor,
        alibi: Tensor,
        attention_mask: Tensor | None,
        layer_past: Any = None,
        use_cache: bool = False,
        output_attentions: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        if alibi.ndim == 4 and hidden_states.shape[1] == 1:
            # For one query the original is as short, and faster by what a call of relpos costs.
            alibi = alibi.expand(hidden_states.shape[0], -1, -1, -1).flatten(0, 1)
            attention_mask = None
        if alibi.ndim == 3:
            return super().forward(
                hidden_states, residual, alibi, attention_mask, layer_past, use_cache,
                output_attentions, **kwargs,
            )  # fmt: skip
        q, k, v = self._reshape(self.query_key_value(hidden_states))
        start = first_query(layer_past, queries=q.shape[2], layer=self.layer_idx)
        if layer_past is not None:
            k, v = layer_past.update(k, v, self.layer_idx)
        output, weights = attend(
            q, k, v, mask=alibi, causal=True, query_start=start, scale=self.inv_norm_factor,
            dropout=drop_probability(self.attention_dropout), weights=output_attentions,
        )  # fmt: skip
        output = self._project(output.flatten(2))
        return dropout_add(output, residual, self.hidden_dropout, self.training), weights

    def _project(self, x: Tensor) -> Tensor:
        """The output projection, in the order of several devices if that is asked for."""
        if self.pretraining_tp == 1 or not self.slow_but_exact:
            return self.dense(x)
        width = self.hidden_size / self.pretraining_tp
        output = torch.zeros_like(x)
        for n in range(self.pretraining_tp):
            part = slice(int(n * width), int((n + 1) * width))
            output = output + linear(x[..., part], self.dense.weight[:, part])
        return output


class Model(AlibiModel):
    """For `BloomModel`: no mask of all pairs, but `(b, h, 1, j)`, biases and padding in one."""

    signatures = AlibiModel.signatures | {
        "build_alibi_tensor": ("self", "attention_mask", "num_heads", "dtype")
    }

    def build_alibi_tensor(
        self, attention_mask: Tensor, num_heads: int, dtype: torch.dtype
    ) -> Tensor:
        """`(b, h, 1, j)`, the lowest number for padding, for a mask `(b, 1, 1, j)`."""
        original: Any = super()
        if attention_mask.ndim == 2 or attention_mask.shape[-2] > 1:
            return original.build_alibi_tensor(attention_mask, num_heads, dtype)
        alibi = original.build_alibi_tensor(attention_mask[:, 0, 0], num_heads, dtype)
        lowest = torch.finfo(dtype).min
        return alibi.unflatten(0, (-1, num_heads)).masked_fill(~attention_mask, lowest)
