"""What relative attention means, as a literal double loop in NumPy: the judge of all backends.

    s_ij = scale * (q_i . k_j + p_i . K[j-i] + k_j . Q[j-i]) + B[j-i] + mask_ij
    o_i  = sum_j softmax(s_i)_j * (v_j + V[j-i])

with `p_i = q_rel_i` where it is given and `q_i` otherwise. Written from these formulas (Shaw et al.
2018, eq. 3-4; Huang et al. 2018, eq. 3; and their siblings) and from nothing else in this package.
Slow on purpose.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray

__all__ = ["Table", "attention"]


@dataclass(frozen=True)
class Table:
    """Rows `(h or 1, r, d)` or scalars `(h or 1, r)`; row n belongs to offset `first + n`."""

    rows: ndarray
    first: int
    beyond: Literal["clamp", "zero"] = "clamp"

    def at(self, head: int, offset: int) -> ndarray | np.floating:
        """The row (or scalar) that `head` sees at `offset = key position - query position`."""
        rows = self.rows[head if len(self.rows) > 1 else 0]
        row = offset - self.first
        if 0 <= row < len(rows):
            return rows[row]
        if self.beyond == "zero":
            return np.zeros_like(rows[0])
        return rows[0] if row < 0 else rows[-1]


def attention(
    q: Float[ndarray, "b h i d"],
    k: Float[ndarray, "b g j d"],
    v: Float[ndarray, "b g j dv"],
    *,
    keys: Table | None = None,
    queries: Table | None = None,
    bias: Table | None = None,
    values: Table | None = None,
    q_rel: Float[ndarray, "b h i dr"] | None = None,
    causal: bool = False,
    mask: Bool[ndarray, "..."] | Float[ndarray, "..."] | None = None,
    scale: float | None = None,
    query_start: int | None = None,
) -> tuple[Float[ndarray, "b h i dv"], Float[ndarray, "b h i"]]:
    """Output `o` and natural log-sum-exp of the scores, pair by pair.

    Args:
        q: queries.
        k: keys; query head `n` meets key head `n // (h // g)`.
        v: values.
        keys: K of the formula.
        queries: Q of the formula.
        bias: B of the formula, in logits.
        values: V of the formula.
        q_rel: p of the formula; None means q.
        causal: a query sees only keys at its own position and before.
        mask: broadcasts to `(b, h, i, j)`; True takes part, or a number added to the score.
        scale: None means `1 / sqrt(d)`.
        query_start: position of the first query; None means that the queries are the last ones.

    Returns:
        The output and the log-sum-exp; a row without any key gives zeros and `-inf`.
    """
    batch, heads, length, width = q.shape
    groups, context = k.shape[1], k.shape[2]
    scale = 1 / sqrt(width) if scale is None else scale
    start = context - length if query_start is None else query_start
    p = q if q_rel is None else q_rel
    if mask is not None:
        mask = np.broadcast_to(mask, (batch, heads, length, context))

    output = np.zeros((batch, heads, length, v.shape[3]))
    lse = np.full((batch, heads, length), -np.inf)
    for b, h, i in np.ndindex(batch, heads, length):
        g = h // (heads // groups)
        scores, vectors = [], []
        for j in range(context):
            offset = j - (start + i)
            if causal and offset > 0:
                continue
            if mask is not None and mask.dtype == bool and not mask[b, h, i, j]:
                continue
            score = q[b, h, i] @ k[b, g, j]
            vector = v[b, g, j]
            if keys is not None:
                score = score + p[b, h, i] @ keys.at(h, offset)
            if queries is not None:
                score = score + k[b, g, j] @ queries.at(h, offset)
            score = scale * score
            if bias is not None:
                score = score + bias.at(h, offset)
            if values is not None:
                vector = vector + values.at(h, offset)
            if mask is not None and mask.dtype != bool:
                score = score + mask[b, h, i, j]
            if score != -np.inf:
                scores.append(score)
                vectors.append(vector)
        if scores:
            highest = max(scores)
            weights = np.exp(np.array(scores) - highest)
            output[b, h, i] = (weights / weights.sum()) @ np.array(vectors)
            lse[b, h, i] = highest + np.log(weights.sum())
    return output, lse
