"""Granite Speech's encoders (Saon et al. 2025): Shaw's keys, in blocks that see themselves alone.

    s_ij = scale * q_i . (k_j + K[j - i]),   i and j in one block

One table of keys for all heads. The originals pad the last block, and look a `c x c x d` tensor up
for blocks of `c` tokens; here each query has a range of keys. What they take grows linearly too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...ranges import chunk_ranges
from ...terms import OffsetTable, Terms
from ..adapted import Adapted
from ..attend import attend
from ..heads import split_heads
from ..masks import key_padding

__all__ = ["ConformerAttention", "EncoderAttention"]


class _BlockAttention(Adapted):
    """What the versions share."""

    scheme = "Shaw keys in blocks"
    context_size: int
    rel_pos_emb: nn.Module

    def _attend(
        self,
        projected: tuple[Tensor, Tensor, Tensor],
        index: Tensor,
        *,
        head_dim: int,
        scale: float,
        mask: Tensor | None = None,
        dropout: float = 0.0,
    ) -> Tensor:
        """The heads' output, `(b, i, h * d)`.

        Args:
            projected: queries, keys and values, `(b, i, h * d)`.
            index: `(c, c)`, of each pair's row; it depends on the offset alone.
            head_dim: d.
            scale: of the scores.
            mask: of padding.
            dropout: probability that a weight is dropped.
        """
        q, k, v = (split_heads(x, width=head_dim) for x in projected)
        # The last query sees offsets up to 0, and the last key is seen at those from 0 on.
        by_offset = torch.cat([index[-1], index[:-1, -1].flip(0)])
        rows = self.rel_pos_emb(by_offset).to(q.dtype)[None]
        output, _ = attend(
            q, k, v, Terms(keys=OffsetTable(rows, 1 - len(index))), mask=mask, scale=scale,
            dropout=dropout,
            key_ranges=chunk_ranges(q.shape[2], self.context_size, 0, device=q.device),
        )  # fmt: skip
        return output.flatten(2)


class ConformerAttention(_BlockAttention):
    """For `GraniteSpeechConformerAttention`, which takes no mask and drops no weights."""

    weights_dropout = ""
    signatures = {"forward": ("self", "hidden_states", "attention_dists")}
    dim_head: int
    scale: float
    pre_norm: nn.Module
    to_q: nn.Module
    to_kv: nn.Module
    to_out: nn.Module
    dropout: nn.Module

    def forward(self, hidden_states: Tensor, attention_dists: Tensor) -> Tensor:
        x = self.pre_norm(hidden_states)
        k, v = self.to_kv(x).chunk(2, dim=-1)
        output = self._attend(
            (self.to_q(x), k, v), attention_dists, head_dim=self.dim_head, scale=self.scale
        )
        return self.dropout(self.to_out(output))


class EncoderAttention(_BlockAttention):
    """For `GraniteSpeech5EncoderAttention`; it never returns weights."""

    weights_dropout = "attention_dropout"
    signatures = {
        "forward": ("self", "hidden_states", "position_embeddings", "attention_mask", "kwargs")
    }
    head_dim: int
    scaling: float
    attention_dropout: float
    q_proj: nn.Module
    k_proj: nn.Module
    v_proj: nn.Module
    o_proj: nn.Module

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: Tensor,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        q, k, v = (project(hidden_states) for project in (self.q_proj, self.k_proj, self.v_proj))
        output = self._attend(
            (q, k, v), position_embeddings, head_dim=self.head_dim, scale=self.scaling,
            mask=None if attention_mask is None else key_padding(attention_mask),
            dropout=self.attention_dropout if self.training else 0.0,
        )  # fmt: skip
        return self.o_proj(output), None
