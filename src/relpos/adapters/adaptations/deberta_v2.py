"""DeBERTa v2 and v3 (He et al. 2021), and their attention in SEW-D (Wu et al. 2022)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ...terms import Terms
from ..attend import attend
from ..drop_probability import drop_probability
from ..heads import project_heads, split_heads
from ..weights_wanted import weights_wanted
from .buckets import NEVER_END
from .disentangled import DisentangledAttention, disentangled_scale, disentangled_terms

__all__ = ["SEWDSelfAttention", "SelfAttention"]


class SelfAttention(DisentangledAttention):
    """For `DisentangledSelfAttention`.

    Given `relative_pos`, or another number of queries than of keys, it runs as before.
    """

    share_att_key: bool
    position_buckets: int
    query_proj: nn.Module
    key_proj: nn.Module
    value_proj: nn.Module
    pos_key_proj: Any
    pos_query_proj: Any
    dropout: Any

    @classmethod
    def unsupported(cls, module: Any) -> str | None:
        if module.position_buckets > 0 and module.position_buckets % 2:
            return "position_buckets is odd, so that the buckets never end"
        if module.position_buckets > 0 and module.max_relative_positions - 1 <= (
            module.position_buckets // 2
        ):
            return NEVER_END
        return None

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor,
        output_attentions: bool = False,
        query_states: Tensor | None = None,
        relative_pos: Tensor | None = None,
        rel_embeddings: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        if not _has_row_for_each_offset(hidden_states, query_states, relative_pos, rel_embeddings):
            return self.original_forward(
                hidden_states, attention_mask, output_attentions, query_states, relative_pos,
                rel_embeddings,
            )  # fmt: skip
        return self._attend(
            hidden_states, query_states, attention_mask, rel_embeddings, weights=output_attentions
        )

    def _attend(
        self,
        hidden_states: Tensor,
        query_states: Tensor | None,
        mask: Tensor,
        positions: Tensor | None,
        *,
        weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        queries = hidden_states if query_states is None else query_states
        q = split_heads(self.query_proj(queries), width=self.attention_head_size)
        k, v = project_heads(
            hidden_states, self.key_proj, self.value_proj, width=self.attention_head_size
        )
        terms = self._terms(self.pos_dropout(positions), self.length_of(q))
        output, probabilities = attend(
            q, k, v, terms, mask=mask.bool(),
            scale=disentangled_scale(q.shape[3], terms=len(terms.tables)), window=self.window,
            dropout=self._drop_probability(), weights=weights,
            elsewhere=self.attend_elsewhere,
        )  # fmt: skip
        return output.flatten(2), probabilities

    def _drop_probability(self) -> float:
        return drop_probability(self.dropout)

    def _terms(self, positions: Tensor, length: int) -> Terms:
        shared = self.share_att_key
        keys = self.key_proj if shared else getattr(self, "pos_key_proj", None)
        queries = self.query_proj if shared else getattr(self, "pos_query_proj", None)
        return disentangled_terms(
            positions,
            keys=keys if "c2p" in self.pos_att_type else None,
            queries=queries if "p2c" in self.pos_att_type else None,
            heads=self.num_attention_heads,
            length=length,
            furthest=self.max_relative_positions,
            buckets=self.position_buckets,
        )


class SEWDSelfAttention(SelfAttention):
    """For SEW-D's `DisentangledSelfAttention`, which always returns its weights."""

    signatures = {
        "forward": (
            "self", "hidden_states", "attention_mask", "query_states", "relative_pos",
            "rel_embeddings", "kwargs",
        )
    }  # fmt: skip

    def refuses_cut(self) -> str | None:
        return "its model has convolutions, which look at the frames beside"

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor,
        query_states: Tensor | None = None,
        relative_pos: Tensor | None = None,
        rel_embeddings: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        if not _has_row_for_each_offset(hidden_states, query_states, relative_pos, rel_embeddings):
            return self.original_forward(
                hidden_states, attention_mask, query_states, relative_pos, rel_embeddings, **kwargs
            )
        return self._attend(
            hidden_states, query_states, attention_mask, rel_embeddings,
            weights=weights_wanted(kwargs),
        )  # fmt: skip

    def _drop_probability(self) -> float:
        return self.dropout.drop_prob if self.dropout.training else 0.0


def _has_row_for_each_offset(
    keys: Tensor, queries: Tensor | None, relative_pos: Tensor | None, positions: Tensor | None
) -> bool:
    """Whether each offset has one row: as many queries as keys, and no positions that are given."""
    same = queries is None or queries.shape[1] == keys.shape[1]
    return same and relative_pos is None and positions is not None
