"""MPNet (Song et al. 2020): T5's bias, the same for all layers, beside scaled scores.

The encoder makes the bias, `(b, h, i, j)` in the original and here `(h, r)`, a row for each offset.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...terms import OffsetTable, Terms
from ...traced_sizes import plain_size
from ..adapted import Adapted
from ..attend import attend
from ..drop_probability import drop_probability
from ..heads import project_heads
from ..masks import additive_mask, encoder_mask
from .buckets import rows_of_buckets

__all__ = ["Encoder", "Model", "SelfAttention"]

# Where the last bucket begins, in tokens; no configuration has it.
_FURTHEST = 128


class SelfAttention(Adapted):
    """For `MPNetSelfAttention`; given a bias of all pairs, it runs as before."""

    scheme = "T5 bias"
    signatures = {
        "forward": (
            "self", "hidden_states", "attention_mask", "position_bias", "output_attentions",
            "kwargs",
        )
    }  # fmt: skip
    attention_head_size: int
    q: nn.Module
    k: nn.Module
    v: nn.Module
    o: nn.Module
    dropout: nn.Dropout

    @classmethod
    def takes_window(cls, module: Any) -> bool:
        return True

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_bias: Tensor | None = None,
        output_attentions: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, ...]:
        if position_bias is None or position_bias.ndim != 2:
            return self.original_forward(
                hidden_states, attention_mask, position_bias, output_attentions, **kwargs
            )
        q, k, v = project_heads(
            hidden_states, self.q, self.k, self.v, width=self.attention_head_size
        )
        output, weights = attend(
            q, k, v, Terms(bias=OffsetTable(position_bias, -(plain_size(position_bias, 1) // 2))),
            mask=attention_mask, scale=self.attention_head_size**-0.5, window=self.window,
            dropout=drop_probability(self.dropout), weights=output_attentions,
        )  # fmt: skip
        output = self.o(output.flatten(2))
        return (output,) if weights is None else (output, weights)


class Model(Adapted):
    """For `MPNetModel`: masks of padding alone, which its original keeps as they are given."""

    signatures = {
        "forward": (
            "self", "input_ids", "attention_mask", "position_ids", "inputs_embeds",
            "output_attentions", "output_hidden_states", "return_dict", "kwargs",
        )
    }  # fmt: skip
    embeddings: Any

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if attention_mask is not None and attention_mask.ndim == 2:
            mask = encoder_mask(attention_mask, length=attention_mask.shape[1])
            # Layers that are left add it to their scores. (A replica of DataParallel has no dtype.)
            dtype = self.embeddings.LayerNorm.weight.dtype
            attention_mask = None if mask is None else additive_mask(mask, dtype)
        return super().forward(input_ids, attention_mask, *args, **kwargs)


class Encoder(Adapted):
    """For `MPNetEncoder`: the bias by offset."""

    signatures = {
        "compute_position_bias": ("self", "x", "position_ids", "num_buckets"),
        "relative_position_bucket": ("relative_position", "num_buckets", "max_distance"),
    }  # fmt: skip
    layer: nn.ModuleList
    relative_attention_bias: nn.Embedding
    relative_position_bucket: Any

    def compute_position_bias(
        self, x: Tensor, position_ids: Tensor | None = None, num_buckets: int = 32
    ) -> Tensor:
        """`(h, r)`, a row for each offset, where every layer takes that."""
        if position_ids is not None or not self._all_take_tables():
            original: Any = super()
            return original.compute_position_bias(x, position_ids, num_buckets)
        offsets = torch.arange(-_FURTHEST, _FURTHEST + 1, device=x.device)
        buckets = self.relative_position_bucket(offsets, num_buckets, _FURTHEST)
        return rows_of_buckets(self.relative_attention_bias, buckets)

    def _all_take_tables(self) -> bool:
        """Whether every layer takes a bias by offset."""
        layers: Any = self.layer
        return all(isinstance(layer.attention.attn, Adapted) for layer in layers)
