"""The attention weights themselves: builds the `i x j` matrix that the op avoids."""

from __future__ import annotations

from math import sqrt

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..offsets import offsets, rows_at
from ..shear import relative_to_absolute
from ..terms import OffsetTable, Terms

__all__ = ["attention_weights"]


def attention_weights(
    q: Float[Tensor, "b h i d"],
    k: Float[Tensor, "b g j d"],
    terms: Terms,
    *,
    causal: bool,
    mask: Bool[Tensor, "#b #h #i #j"] | Float[Tensor, "#b #h #i #j"] | None,
    scale: float | None,
) -> Float[Tensor, "b h i j"]:
    """`softmax_j(s_ij)` of `relpos.attention`, for queries that are the last `i` positions.

    Args:
        q: queries.
        k: keys.
        terms: the tables; `values` plays no part.
        causal: whether keys ahead of the query are left out.
        mask: boolean, True where a pair takes part, or added to the score.
        scale: None means `1 / sqrt(d)`.

    Returns:
        Weights before dropout; a row without any key is zero.
    """
    work = torch.promote_types(q.dtype, torch.float32)
    q_, k_ = q.to(work), k.to(work).repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    i, j = q.shape[2], k.shape[2]

    def rows(table: OffsetTable) -> Tensor:
        # Every offset from the last query at the first key to the first query at the last key.
        return rows_at(table, 1 - j, i - 1).to(work)

    scores = q_ @ k_.mT
    if terms.keys is not None:
        p = q_ if terms.q_rel is None else terms.q_rel.to(work)
        scores = scores + relative_to_absolute(p @ rows(terms.keys).mT)
    if terms.queries is not None:
        # With keys in the rows the offsets run the other way.
        by_key = relative_to_absolute(k_ @ rows(terms.queries).flip(1).mT)
        scores = scores + by_key.mT
    scores = scores * (1 / sqrt(q.shape[3]) if scale is None else scale)
    if terms.bias is not None:
        bias = rows(terms.bias)[:, None].expand(-1, i, -1)
        scores = scores + relative_to_absolute(bias)
    if mask is not None and mask.dtype != torch.bool:
        scores = scores + mask.to(work)
    elif mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    if causal:
        scores = scores.masked_fill(offsets(i, j, device=q.device) > 0, -torch.inf)
    empty = (scores == -torch.inf).all(-1, keepdim=True)
    return scores.masked_fill(empty, 0).softmax(-1).masked_fill(empty, 0).to(q.dtype)
