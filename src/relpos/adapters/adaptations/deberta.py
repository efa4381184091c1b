"""DeBERTa (He et al. 2021), as first published: no buckets, one projection for q, k and v."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..attend import attend
from ..drop_probability import drop_probability
from ..heads import split_heads
from .disentangled import DisentangledAttention, disentangled_scale, disentangled_terms

__all__ = ["SelfAttention"]


class SelfAttention(DisentangledAttention):
    """For `DisentangledSelfAttention`; given `relative_pos` or `query_states`, it runs as before.

    Without `relative_pos` the original would leave the positions out; its encoder always gives it,
    and this one's never.
    """

    in_proj: nn.Module
    pos_proj: Any
    pos_q_proj: Any
    q_bias: nn.Parameter
    v_bias: nn.Parameter
    dropout: nn.Dropout

    @classmethod
    def unsupported(cls, module: Any) -> str | None:
        return "talking_head mixes the scores of all heads" if module.talking_head else None

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor,
        output_attentions: bool = False,
        query_states: Tensor | None = None,
        relative_pos: Tensor | None = None,
        rel_embeddings: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        if query_states is not None or relative_pos is not None or rel_embeddings is None:
            return self.original_forward(
                hidden_states, attention_mask, output_attentions, query_states, relative_pos,
                rel_embeddings,
            )  # fmt: skip
        heads = self.num_attention_heads
        projected = split_heads(self.in_proj(hidden_states), width=3 * self.attention_head_size)
        q, k, v = projected.chunk(3, dim=-1)
        q = q + self.q_bias.unflatten(0, (heads, 1, -1))
        v = v + self.v_bias.unflatten(0, (heads, 1, -1))
        terms = disentangled_terms(
            self.pos_dropout(rel_embeddings),
            keys=self.pos_proj if "c2p" in self.pos_att_type else None,
            queries=self.pos_q_proj if "p2c" in self.pos_att_type else None,
            heads=heads, length=self.length_of(q), furthest=self.max_relative_positions, buckets=-1,
        )  # fmt: skip
        output, weights = attend(
            q, k, v, terms, mask=attention_mask.bool(),
            scale=disentangled_scale(q.shape[3], terms=len(self.pos_att_type)),
            window=self.window, dropout=drop_probability(self.dropout),
            weights=output_attentions, elsewhere=self.attend_elsewhere,
        )  # fmt: skip
        return output.flatten(2), weights
