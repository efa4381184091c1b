"""w2v-BERT 2.0 (Seamless Communication et al. 2023): Shaw's keys, or Transformer-XL's positions.

The published checkpoints have `position_embeddings_type="relative_key"`: one table of keys for all
heads, of the offsets `-left..right`, clamped beyond. The original looks an `L x L x d` tensor up.
Wav2Vec2-Conformer and SeamlessM4T have the same module, with Transformer-XL's positions alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...terms import OffsetTable, Terms
from ..adapted import Adapted
from ..attend import attend
from ..heads import project_heads
from ..weights_wanted import weights_wanted
from .transformer_xl import transformer_xl_terms

__all__ = ["ConformerSelfAttention", "SelfAttention"]

_SCHEMES = {"relative_key": "Shaw keys", "relative": "Transformer-XL"}


class SelfAttention(Adapted):
    """For `Wav2Vec2BertSelfAttention`; that of adapter layers has no positions."""

    scheme = "Shaw keys, or Transformer-XL"
    signatures = {
        "forward": (
            "self", "hidden_states", "attention_mask", "relative_position_embeddings", "kwargs",
        )
    }  # fmt: skip
    masks_by_config = True
    position_embeddings_type: str
    head_size: int
    scaling: float
    left_max_position_embeddings: Any
    dropout: nn.Dropout
    linear_q: nn.Module
    linear_k: nn.Module
    linear_v: nn.Module
    linear_out: nn.Module
    linear_pos: Any
    pos_bias_u: Any
    pos_bias_v: Any
    distance_embedding: Any

    @classmethod
    def applies(cls, module: Any) -> bool:
        return module.position_embeddings_type in _SCHEMES

    @classmethod
    def takes_window(cls, module: Any) -> bool:
        return True

    @classmethod
    def described(cls, module: Any) -> str:
        return _SCHEMES[module.position_embeddings_type]

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        relative_position_embeddings: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        q, k, v = project_heads(
            hidden_states, self.linear_q, self.linear_k, self.linear_v, width=self.head_size
        )
        q, terms = self._positions(q, relative_position_embeddings)
        output, weights = attend(
            q, k, v, terms, mask=attention_mask, scale=self.scaling,
            dropout=self.dropout.p if self.training else 0.0, window=self.window,
            key_ranges=self._key_ranges(hidden_states), weights=weights_wanted(kwargs),
        )  # fmt: skip
        return self.linear_out(output.flatten(2)), weights

    def _key_ranges(self, hidden_states: Tensor) -> Tensor | None:
        """The keys that each query sees beside the mask, `(1, i, 2)`; None: all."""
        return None

    def _positions(self, q: Tensor, sinusoids: Tensor | None) -> tuple[Tensor, Terms]:
        if self.position_embeddings_type == "relative_key":
            table = self.distance_embedding
            rows = table(torch.arange(table.num_embeddings, device=q.device)).to(q.dtype)
            return q, Terms(keys=OffsetTable(rows[None], -self.left_max_position_embeddings))
        if sinusoids is None:
            raise ValueError(
                f"{type(self).__name__}: relative_position_embeddings must be given for "
                "position_embeddings_type='relative', got None"
            )
        terms = transformer_xl_terms(
            self.linear_pos(sinusoids[0]), self.pos_bias_u, self.pos_bias_v, scale=self.scaling
        )
        return q + self.pos_bias_u[:, None], terms


class ConformerSelfAttention(SelfAttention):
    """For those of Wav2Vec2-Conformer and SeamlessM4T."""

    scheme = "Transformer-XL"
