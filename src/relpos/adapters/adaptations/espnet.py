"""ESPnet's Conformers (Guo et al. 2021): Transformer-XL's positions, in both of their forms.

    s_ij = scale * ((q_i + u) . k_j + (q_i + v) . p[j - i])          newer: p from -(L - 1) to L - 1

The legacy form shifts the products with L rows only, those of keys that are not ahead, so that a
key ahead of the query has the next query's product, with the row of a key far behind:

    s_ij = scale * ((q_i + u) . k_j + (q_i + v) . p[j - i])           j <= i
           scale *  (q_i + u) . k_j                                   j = i + 1
           scale * ((q_i + u) . k_j + (q_(i+1) + v) . p[j - i - 1 - L])     j > i + 1

Models were trained with it. Both queries side by side are a `q_rel` of twice the width, and each
row of the one table has zeros in the half that is not its own. With `zero_triu` the positions of
keys ahead of the query add nothing in either form: there are no rows for them.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from ...terms import OffsetTable, Terms
from ..adapted import Adapted
from ..attend import attend
from ..drop_probability import drop_probability
from .transformer_xl import transformer_xl_terms

__all__ = [
    "FunASRLegacyRelPositionAttention",
    "FunASRRelPositionAttention",
    "LegacyRelPositionAttention",
    "RelPositionAttention",
]

_ESPNET = {
    "forward": ("self", "query", "key", "value", "pos_emb", "mask"),
    "forward_qkv": ("self", "query", "key", "value", "expand_kv"),
}
_FUNASR = _ESPNET | {"forward_qkv": ("self", "query", "key", "value")}


class RelPositionAttention(Adapted):
    """For `RelPositionMultiHeadedAttention`, which keeps its last weights in `attn`; this does not.

    It runs as before on queries and keys that are not equally many, and on a table for each
    sequence of the batch.
    """

    scheme = "Transformer-XL"
    signatures = _ESPNET
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
        if i != j or pos_emb.shape[:2] != (1, self._rows(i)):
            return self.original_forward(query, key, value, pos_emb, mask)
        q, k, v = self.forward_qkv(query, key, value)
        output, _ = attend(
            q + self.pos_bias_u[:, None], k, v, self._terms(q, self.linear_pos(pos_emb[0])),
            mask=None if mask is None else mask[:, None] != 0, scale=self.d_k**-0.5,
            dropout=drop_probability(self.dropout), window=self.window,
        )  # fmt: skip
        return self.linear_out(output.flatten(2))

    def _rows(self, tokens: int) -> int:
        """How many rows the positions of so many tokens have."""
        return 2 * tokens - 1

    def _terms(self, q: Float[Tensor, "b h i d"], projected: Float[Tensor, "r hd"]) -> Terms:
        scale = self.d_k**-0.5
        terms = transformer_xl_terms(projected, self.pos_bias_u, self.pos_bias_v, scale=scale)
        if self.zero_triu:
            behind: Any = {name: _behind(table) for name, table in terms.tables.items()}
            return Terms(**behind)
        return terms


class LegacyRelPositionAttention(RelPositionAttention):
    """For `LegacyRelPositionMultiHeadedAttention`, likewise."""

    scheme = "Transformer-XL, shifted as in ESPnet's first version"

    def _rows(self, tokens: int) -> int:
        return tokens

    def _terms(self, q: Float[Tensor, "b h i d"], projected: Float[Tensor, "r hd"]) -> Terms:
        own = q + self.pos_bias_v[:, None]
        rows = projected.unflatten(-1, self.pos_bias_v.shape).transpose(0, 1)  # (h, r, d)
        first = 1 - rows.shape[1]
        if self.zero_triu:
            return Terms(keys=OffsetTable(rows, first, "zero"), q_rel=own)
        following = pad(own[:, :, 1:], (0, 0, 0, 1))
        nothing = rows.new_zeros(rows.shape[0], 1, 2 * self.d_k)
        # Of the key right ahead of the query there is nothing.
        table = (pad(rows, (0, self.d_k)), nothing, pad(rows[:, :-2], (self.d_k, 0)))
        return Terms(
            keys=OffsetTable(torch.cat(table, 1), first), q_rel=torch.cat((own, following), -1)
        )


class FunASRRelPositionAttention(RelPositionAttention):
    """For FunASR's copy of it."""

    signatures = _FUNASR


class FunASRLegacyRelPositionAttention(LegacyRelPositionAttention):
    """For FunASR's copy of it."""

    signatures = _FUNASR


def _behind(table: OffsetTable) -> OffsetTable:
    """The rows of the offsets up to 0, and nothing ahead."""
    return OffsetTable(table.rows[:, : 1 - table.first], table.first, "zero")
