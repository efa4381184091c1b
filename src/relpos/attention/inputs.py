"""What every backend receives: checked tensors and resolved settings."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..terms import GridTerms, Terms

__all__ = ["Inputs"]


@dataclass(frozen=True)
class Inputs:
    """The arguments of `relpos.attention` after checking, with nothing left to default.

    Args:
        q: `(b, h, i, d)`.
        k: `(b, g, j, d)`.
        v: `(b, g, j, dv)`.
        terms: the tables.
        causal: whether keys ahead of the query are left out.
        mask: boolean (True takes part) or additive, four axes, each full or 1; or None.
        dropout: probability, in `0 <= dropout < 1`.
        scale: of the content, `keys` and `queries` scores.
        query_start: position of the first query, in tokens.
        documents: `(b or 1, j)`, the document of each position, negative for none; or None.
        return_lse: whether the log-sum-exp is asked for.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    terms: Terms | GridTerms
    causal: bool
    mask: Tensor | None
    dropout: float
    scale: float
    query_start: int
    documents: Tensor | None
    return_lse: bool
