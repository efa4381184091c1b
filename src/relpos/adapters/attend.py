"""`relpos.attention` as the modules of other libraries call theirs: masks, weights, one output."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..ops import attention, attention_weights
from ..ops.locality import AnyWindow
from ..terms import NO_TERMS, GridTerms, Terms
from .masks import check_mask

__all__ = ["attend"]


def attend(
    q: Float[Tensor, "b h i d"],
    k: Float[Tensor, "b g j d"],
    v: Float[Tensor, "b g j dv"],
    terms: Terms | GridTerms = NO_TERMS,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float,
    dropout: float = 0.0,
    query_start: int | None = None,
    window: AnyWindow = None,
    key_ranges: Tensor | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, "b h i 1"] | None = None,
    weights: bool = False,
    elsewhere: Callable[..., Any] | None = None,
) -> tuple[Float[Tensor, "b i h dv"], Float[Tensor, "b h i j"] | None]:
    """The output with heads behind the tokens, and the weights before dropout if they are wanted.

    Args:
        q: queries.
        k: keys.
        v: values.
        terms: the tables.
        mask: as in `relpos.attention`; longer than j: cut. One with a row for each query says all
            that there is to say, so that `causal` is not applied beside it, as in transformers.
        causal: whether keys ahead of the query are left out.
        scale: of the scores.
        dropout: probability that a weight is dropped; 0 outside of training.
        query_start: position of the first query, in tokens; None: the queries are the last.
        window: as in `relpos.attention`.
        key_ranges: as in `relpos.attention`.
        softcap: as in `relpos.attention`.
        sinks: the score of one more key for each query, whose value is zero; None: there is none.
        weights: whether to build the `i x j` weights.
        elsewhere: what attends in place of `relpos.attention`, over several devices.

    Raises:
        ShapeError: if the mask is of integers.
        ValueError: if weights are wanted over several devices.
    """
    check_mask(mask)
    if elsewhere is not None and weights:
        raise ValueError("adapt: output_attentions must be False over several devices, got True")
    if mask is not None:
        mask = mask[..., : k.shape[2]]
        # Sizes are tensors while they are traced.
        causal = causal and bool(mask.shape[-2] == 1)
    compute = partial(
        elsewhere or attention, q, k, v, terms, mask=mask, causal=causal, scale=scale,
        dropout=dropout, query_start=query_start, window=window, key_ranges=key_ranges,
        softcap=softcap,
    )  # fmt: skip
    found = None
    if weights:
        found = attention_weights(
            q, k, terms, mask=mask, causal=causal, scale=scale, query_start=query_start,
            window=window, key_ranges=key_ranges, softcap=softcap,
        )  # fmt: skip
    if sinks is None:
        return compute().transpose(1, 2), found
    output, lse = compute(return_lse=True)
    # What the sink leaves to the keys: dropout of their weights does not change it.
    share = torch.sigmoid(lse[..., None] - sinks).to(q.dtype)
    return (output * share).transpose(1, 2), None if found is None else found * share
