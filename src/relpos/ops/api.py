"""The one public op, and its weights for those who want to look at them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Literal, overload

from jaxtyping import Bool, Float, Integer
from torch import Tensor

from ..autocast import autocasts, without_autocast
from ..jagged import is_jagged
from ..terms import NO_TERMS, GridTerms, Terms
from . import reference
from .dispatch import choose
from .inputs import prepare, without_values
from .known_calls import KNOWN, KnownCall, find_call
from .locality import AnyKeyRanges, AnyWindow
from .nested import attention_of_nested

__all__ = ["attention", "attention_weights", "relative_logits"]


@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, terms: Terms | GridTerms = ..., *, causal: bool = ...,
    mask: Tensor | None = ..., dropout: float = ..., scale: float | None = ...,
    query_start: int | None = ..., documents: Tensor | None = ...,
    query_documents: Tensor | None = ..., window: AnyWindow = ...,
    key_ranges: AnyKeyRanges = ..., softcap: float | None = ..., backend: str = ...,
    return_lse: Literal[False] = ...,
) -> Tensor: ...  # fmt: skip
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, terms: Terms | GridTerms = ..., *, causal: bool = ...,
    mask: Tensor | None = ..., dropout: float = ..., scale: float | None = ...,
    query_start: int | None = ..., documents: Tensor | None = ...,
    query_documents: Tensor | None = ..., window: AnyWindow = ...,
    key_ranges: AnyKeyRanges = ..., softcap: float | None = ..., backend: str = ...,
    return_lse: Literal[True],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
def attention(
    q: Float[Tensor, "b h i d"],
    k: Float[Tensor, "b g j d"],
    v: Float[Tensor, "b g j dv"],
    terms: Terms | GridTerms = NO_TERMS,
    *,
    causal: bool = False,
    mask: Bool[Tensor, "..."] | Float[Tensor, "..."] | None = None,
    dropout: float = 0.0,
    scale: float | None = None,
    query_start: int | None = None,
    documents: Integer[Tensor, "#b j"] | None = None,
    query_documents: Integer[Tensor, "#b i"] | None = None,
    window: AnyWindow = None,
    key_ranges: Integer[Tensor, "#b i 2"]
    | Sequence[Integer[Tensor, "#b _ 2"] | None]
    | None = None,
    softcap: float | None = None,
    backend: str = "auto",
    return_lse: bool = False,
) -> Float[Tensor, "b h i dv"] | tuple[Float[Tensor, "b h i dv"], Float[Tensor, "b h i"]]:
    """`o_i = sum_j softmax_j(s_ij) (v_j + V[j-i])` with relative terms in `s_ij`, exactly.

    `s_ij = scale * (q_i . k_j + p_i . K[j-i] + k_j . Q[j-i]) + B[j-i] + mask_ij`, where `p` is
    `terms.q_rel` if given and else `q` (Shaw et al. 2018, eq. 3-4; Huang et al. 2018, eq. 3).
    With `softcap` of c all before the mask becomes `c tanh(x / c)` (Gemma Team 2024, section 2).
    As `F.scaled_dot_product_attention` otherwise, with two differences: `causal` is aligned to
    the lower right (the queries are the last ones), and a query without any key gives zeros.

    Args:
        q: queries; query head `n` reads key head `n // (h // g)`. Nested (`torch.jagged`) along i,
            with `k` and `v` nested along j, each sequence is by itself. `Terms`, `causal` and
            `window` then want all three made with one tensor of offsets (`q.shape[2] ==
            k.shape[2]`), and masks, documents, ranges and `query_start` are refused.
        k: keys.
        v: values.
        terms: the tables of a position scheme; default none.
        causal: whether keys ahead of the query are left out.
        mask: broadcasts to `(b, h, i, j)` and is never expanded; boolean, True where a pair takes
            part, or a number in logits added to the score (differentiable). What is hidden must be
            finite all the same, as for SDPA: its weight is 0, and 0 times NaN is NaN.
        dropout: probability that a weight is dropped, `0 <= dropout < 1`; `tiled` rounds it to
            a multiple of `2**-16`, `native` and `triton` of `2**-32`. The caller passes 0 at
            inference.
        scale: of the content, `keys` and `queries` scores (not of `bias`), a plain number: a
            learned one is multiplied into `q`. None: `1 / sqrt(d)`.
        query_start: position of the first query, in tokens; None: the queries are the last `i`
            of the `j` positions.
        documents: `(b or 1, j)`, the document of each position: a pair takes part only within
            one document, and a position with a negative number in none. The queries are some of
            these j positions (not pooled ones). Sequences packed into one row need no `i x j` mask
            (`relpos.document_ids` makes it from cumulative lengths).
        query_documents: `(b or 1, i)`, the documents of the queries where these are none of the j
            positions: cross-attention from one packed row to another. Terms, `causal` and `window`
            go by the places in these rows, not in the documents.
        window: `(left, right)`: only keys at the offsets `-left..right` take part, in tokens; None
            on a side: no limit there. With `GridTerms` one such pair (or None) for each axis, which
            acts between tokens of the grid, cut at its edges; the prefix sees and is seen by all.
        key_ranges: `(b or 1, i, 2)`, integers: each query sees the keys `lo..hi-1` alone, numbered
            from 0 as they stand in `k`. In any order, and empty where `hi <= lo`. `relpos.
            chunk_ranges`, `prefix_ranges` and `padding_ranges` make some. With `GridTerms` also
            a list of one `(b or 1, n, 2)`, or None, for each axis, n as the queries' grid has it: a
            query at coordinate `y` sees keys whose coordinate is in `lo..hi-1` of row `y`, along
            every axis (`relpos.neighborhood_ranges`); the prefix sees and is seen by all.
        softcap: c, in logits, `1e-20 <= c <= 1e20`; None: no cap.
        backend: `"auto"`, or a name from `relpos.backends()`.
        return_lse: whether to return the log-sum-exp of the scores too.

    Returns:
        The output, nested as `q` is; with `return_lse` also the natural log-sum-exp of each row's
        scores, `-inf` where a row has no key, differentiable too. Where `q` has its heads inside
        the tokens in memory, as projections make it, so has the output (but `reference`'s), and the
        gradients of `q`, `k` and `v` each go by their own input.

    Raises:
        ShapeError: if a shape, dtype or device does not fit `q`.
        ValueError: if `dropout`, `scale`, `query_start`, `window` or `softcap` is out of range,
            `key_ranges` has not one entry for each axis, or there is no such backend.
        TypeError: if an argument is of another kind.
        BackendError: with the reason, if the named backend, or every one, does not support them.

    >>> import torch
    >>> from relpos import OffsetTable
    >>> q = k = v = torch.ones(1, 1, 3, 2)
    >>> decay = Terms(bias=OffsetTable(torch.tensor([[-2.0, -1.0, 0.0]]), first=-2))
    >>> attention(q, k, v, decay, causal=True).shape
    torch.Size([1, 1, 3, 2])
    """
    key = None  # of calls that are alike, which are checked once
    if documents is None and query_documents is None and key_ranges is None:
        settings = causal, dropout, scale, query_start, softcap, return_lse, backend
        key, known = find_call(q, k, v, terms, mask, window, *settings)
        if known is not None:
            output, lse = known(q, k, v, terms, mask)
            return (output, lse) if return_lse else output
    tables = getattr(terms, "tensors", ())
    all_ranges = key_ranges if isinstance(key_ranges, Sequence) else [key_ranges]
    if _any_dtensor(q, k, v, mask, documents, query_documents, *all_ranges, *tables):
        # Imported here alone: most programs have none, and torch takes long to import them.
        from .dtensors import attention_of_dtensors  # noqa: PLC0415

        tensors = {"mask": mask, "documents": documents, "query_documents": query_documents}
        return attention_of_dtensors(
            attention, q, k, v, terms, tensors, key_ranges, causal=causal, dropout=dropout,
            scale=scale, query_start=query_start, window=window, softcap=softcap, backend=backend,
            return_lse=return_lse,
        )  # fmt: skip
    if is_jagged(q):
        others = {
            "mask": mask, "documents": documents, "query_documents": query_documents,
            "key_ranges": key_ranges, "query_start": query_start,
        }  # fmt: skip
        return attention_of_nested(
            attention, q, k, v, terms, others, causal=causal, dropout=dropout, scale=scale,
            window=window, softcap=softcap, backend=backend, return_lse=return_lse,
        )  # fmt: skip
    inputs = prepare(
        "attention", q, k, v, terms, mask, documents, key_ranges, query_documents, causal=causal,
        dropout=dropout, scale=scale, query_start=query_start, window=window, softcap=softcap,
        return_lse=return_lse,
    )  # fmt: skip
    chosen = choose(backend, inputs)
    with without_autocast(q):
        output, lse = chosen.attention(inputs)
    if key is not None:
        KNOWN.put(key, KnownCall(chosen, inputs, autocast=autocasts(q)))
    return (output, lse) if return_lse else output


def _refuse_dtensors(function: str, q: Tensor, k: Tensor, terms: Terms | GridTerms) -> None:
    tensors = {"q": (q,), "k": (k,), "terms": getattr(terms, "tensors", ())}
    for name, each in tensors.items():
        if _any_dtensor(*each):
            raise TypeError(
                f"{function}: {name} must be of plain tensors, such as full_tensor() gives, "
                "got DTensor"
            )


def _any_dtensor(*tensors: object) -> bool:
    """Whether one of them may be cut among devices."""
    dtensors = sys.modules.get("torch.distributed.tensor")
    return dtensors is not None and any(isinstance(x, dtensors.DTensor) for x in tensors)


def attention_weights(
    q: Float[Tensor, "b h i d"],
    k: Float[Tensor, "b g j d"],
    terms: Terms | GridTerms = NO_TERMS,
    *,
    causal: bool = False,
    mask: Bool[Tensor, "..."] | Float[Tensor, "..."] | None = None,
    scale: float | None = None,
    query_start: int | None = None,
    documents: Integer[Tensor, "#b j"] | None = None,
    query_documents: Integer[Tensor, "#b i"] | None = None,
    window: AnyWindow = None,
    key_ranges: Integer[Tensor, "#b i 2"]
    | Sequence[Integer[Tensor, "#b _ 2"] | None]
    | None = None,
    softcap: float | None = None,
) -> Float[Tensor, "b h i j"]:
    """`softmax_j(s_ij)`, the weights of `attention` before dropout: builds the `i x j` matrix.

    Args:
        q: queries.
        k: keys.
        terms: the tables; `values` plays no part.
        causal: whether keys ahead of the query are left out.
        mask: as in `attention`.
        scale: as in `attention`.
        query_start: as in `attention`.
        documents: as in `attention`.
        query_documents: as in `attention`.
        window: as in `attention`.
        key_ranges: as in `attention`.
        softcap: as in `attention`.

    Returns:
        The weights; a row without any key is zero.

    Raises:
        ShapeError: if a shape, dtype or device does not fit `q`.
        ValueError: if `scale`, `query_start`, `window` or `softcap` is out of range, or
            `key_ranges` has not one entry for each axis.
        TypeError: if an argument is of another kind.

    >>> import torch
    >>> attention_weights(torch.zeros(1, 1, 2, 3), torch.zeros(1, 1, 2, 3), causal=True)
    tensor([[[[1.0000, 0.0000],
              [0.5000, 0.5000]]]])
    """
    _refuse_dtensors("attention_weights", q, k, terms)
    inputs = prepare(
        "attention_weights", q, k, k, without_values(terms), mask, documents, key_ranges,
        query_documents, causal=causal, scale=scale, query_start=query_start, window=window,
        softcap=softcap,
    )  # fmt: skip
    with without_autocast(q):
        return reference.attention_weights(inputs)[0].to(inputs.q.dtype)


def relative_logits(
    q: Float[Tensor, "b h i d"],
    k: Float[Tensor, "b g j d"],
    terms: Terms | GridTerms,
    *,
    scale: float | None = None,
    query_start: int | None = None,
) -> Float[Tensor, "b h i j"]:
    """What `terms` add to `scale * q_i . k_j`: builds the `i x j` matrix.

    Args:
        q: queries.
        k: keys.
        terms: the tables; `values` plays no part.
        scale: as in `attention`.
        query_start: as in `attention`.

    Returns:
        The terms' part of the scores, in the dtype of `q`. What a scheme did to `q` and `k`
        themselves is not in it: `Position.logits` has both.

    Raises:
        ShapeError: if a shape, dtype or device does not fit `q`.
        ValueError: if `scale` or `query_start` is out of range.
        TypeError: if an argument is of another kind.

    >>> import torch
    >>> from relpos import OffsetTable
    >>> q, bias = torch.zeros(1, 1, 2, 3), OffsetTable(torch.tensor([[-1.0, 0.0, 1.0]]), first=-1)
    >>> relative_logits(q, q, Terms(bias=bias))
    tensor([[[[ 0.,  1.],
              [-1.,  0.]]]])
    """
    _refuse_dtensors("relative_logits", q, k, terms)
    inputs = prepare(
        "relative_logits", q, k, k, without_values(terms), scale=scale, query_start=query_start,
    )  # fmt: skip
    with without_autocast(q):
        return reference.relative_logits(inputs).to(inputs.q.dtype)
