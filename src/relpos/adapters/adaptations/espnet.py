"""ESPnet's Conformer (Guo et al. 2021): Transformer-XL's positions, in the newer of its two forms.

With `zero_triu` the positions of keys ahead of the query add nothing: their rows are zero here.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ...terms import OffsetTable, Terms
from ..adapted import Adapted
from ..attend import attend
from ..drop_probability import drop_probability
from .transformer_xl import transformer_xl_terms

__all__ = ["FunASRRelPositionAttention", "RelPositionAttention"]


class RelPositionAttention(Adapted):
    """For `RelPositionMultiHeadedAttention`, which keeps its last weights in `attn`; this does not.

    It runs as before on queries and keys that are not equally many, and on a table for each
    sequence of the batch.
    """

    scheme = "Transformer-XL"
    signatures = {
        "forward": ("self", "query", "key", "value", "pos_emb", "mask"),
        "forward_qkv": ("self", "query", "key", "value", "expand_kv"),
    }
    d_k: int
    zero_triu: bool
    forward_qkv: Any
    dropout: nn.Dropout
    linear_out: nn.Module
    linear_pos: nn.Module
    pos_bias_u: nn.Parameter
    pos_bias_v: nn.Parameter

    @classmethod
    def takes_window(cls, module: Any) -> bool:
        return True

    @classmethod
    def described(cls, module: Any) -> str:
        return f"{cls.scheme}; its weights are no longer kept in attn"

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, pos_emb: Tensor, mask: Tensor | None
    ) -> Tensor:
        i, j = query.shape[1], key.shape[1]
        if i != j or pos_emb.shape[:2] != (1, 2 * i - 1):
            return self.original_forward(query, key, value, pos_emb, mask)
        q, k, v = self.forward_qkv(query, key, value)
        scale = self.d_k**-0.5
        terms = transformer_xl_terms(
            self.linear_pos(pos_emb[0]), self.pos_bias_u, self.pos_bias_v, scale=scale
        )
        if self.zero_triu:
            behind: Any = {name: _behind(table) for name, table in terms.tables.items()}
            terms = Terms(**behind)
        output, _ = attend(
            q + self.pos_bias_u[:, None], k, v, terms,
            mask=None if mask is None else mask[:, None] != 0, scale=scale,
            dropout=drop_probability(self.dropout), window=self.window,
        )  # fmt: skip
        return self.linear_out(output.flatten(2))


class FunASRRelPositionAttention(RelPositionAttention):
    """For FunASR's `RelPositionMultiHeadedAttention`, a copy of it."""

    signatures = {
        "forward": ("self", "query", "key", "value", "pos_emb", "mask"),
        "forward_qkv": ("self", "query", "key", "value"),
    }


def _behind(table: OffsetTable) -> OffsetTable:
    """The rows of the offsets up to 0, and nothing ahead."""
    return OffsetTable(table.rows[:, : 1 - table.first], table.first, "zero")
