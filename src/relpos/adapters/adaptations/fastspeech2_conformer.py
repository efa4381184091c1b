"""FastSpeech2-Conformer (Guo et al. 2021): Transformer-XL's positions, given by the encoder."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..adapted import Adapted
from ..attend import attend
from ..drop_probability import drop_probability
from ..heads import project_heads
from ..masks import key_padding
from .transformer_xl import transformer_xl_terms

__all__ = ["Attention"]


class Attention(Adapted):
    """For `FastSpeech2ConformerAttention`, in the encoder and in the decoder."""

    scheme = "Transformer-XL"
    signatures = {
        "forward": ("self", "hidden_states", "attention_mask", "pos_emb", "output_attentions")
    }
    head_dim: int
    dropout: nn.Dropout
    linear_q: nn.Module
    linear_k: nn.Module
    linear_v: nn.Module
    linear_out: nn.Module
    linear_pos: nn.Module
    pos_bias_u: nn.Parameter
    pos_bias_v: nn.Parameter

    @classmethod
    def takes_window(cls, module: Any) -> bool:
        return True

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        pos_emb: Tensor | None = None,
        output_attentions: bool | None = False,
    ) -> tuple[Tensor, Tensor | None]:
        batch, length, _ = hidden_states.shape
        narrow = attention_mask is None or attention_mask.shape == (batch, 1, length)
        # One table for each sequence, and what the original refuses.
        if not narrow or pos_emb is None or pos_emb.shape[0] > 1:
            return self.original_forward(hidden_states, attention_mask, pos_emb, output_attentions)
        q, k, v = project_heads(
            hidden_states, self.linear_q, self.linear_k, self.linear_v, width=self.head_dim
        )
        scale = self.head_dim**-0.5
        terms = transformer_xl_terms(
            self.linear_pos(pos_emb[0]), self.pos_bias_u, self.pos_bias_v, scale=scale
        )
        output, weights = attend(
            q + self.pos_bias_u[:, None], k, v, terms, scale=scale, window=self.window,
            mask=None if attention_mask is None else key_padding(attention_mask[:, 0]),
            dropout=drop_probability(self.dropout), weights=bool(output_attentions),
        )  # fmt: skip
        return self.linear_out(output.flatten(2)), weights
