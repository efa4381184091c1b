"""`relpos.attention` over a sequence that is cut among ranks."""

from __future__ import annotations

from typing import Literal, overload

from jaxtyping import Bool, Float, Integer
from torch import Tensor

from ..ops.locality import AnyWindow
from ..terms import NO_TERMS, GridTerms, Terms
from .layout import KeyLayout, Layout
from .methods.attend import attend
from .methods.choice import Method
from .ranks.group import AnyGroup
from .ranks.not_compiled import not_compiled

__all__ = ["Method", "attention"]


@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, terms: Terms | GridTerms = ..., *, group: AnyGroup,
    layout: Layout = ..., key_layout: KeyLayout | None = ..., method: Method = ...,
    causal: bool = ..., mask: Tensor | None = ..., dropout: float = ...,
    scale: float | None = ..., query_start: int | None = ..., documents: Tensor | None = ...,
    query_documents: Tensor | None = ..., window: AnyWindow = ...,
    key_ranges: Tensor | None = ..., softcap: float | None = ..., backend: str = ...,
    return_lse: Literal[False] = ..., check: bool = ...,
) -> Tensor: ...  # fmt: skip
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, terms: Terms | GridTerms = ..., *, group: AnyGroup,
    layout: Layout = ..., key_layout: KeyLayout | None = ..., method: Method = ...,
    causal: bool = ..., mask: Tensor | None = ..., dropout: float = ...,
    scale: float | None = ..., query_start: int | None = ..., documents: Tensor | None = ...,
    query_documents: Tensor | None = ..., window: AnyWindow = ...,
    key_ranges: Tensor | None = ..., softcap: float | None = ..., backend: str = ...,
    return_lse: Literal[True], check: bool = ...,
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@not_compiled
def attention(
    q: Float[Tensor, "b h i d"],
    k: Float[Tensor, "b g j d"],
    v: Float[Tensor, "b g j dv"],
    terms: Terms | GridTerms = NO_TERMS,
    *,
    group: AnyGroup,
    layout: Layout = "zigzag",
    key_layout: KeyLayout | None = None,
    method: Method = "auto",
    causal: bool = False,
    mask: Bool[Tensor, "..."] | Float[Tensor, "..."] | None = None,
    dropout: float = 0.0,
    scale: float | None = None,
    query_start: int | None = None,
    documents: Integer[Tensor, "#b j"] | None = None,
    query_documents: Integer[Tensor, "#b i"] | None = None,
    window: AnyWindow = None,
    key_ranges: Integer[Tensor, "#b i 2"] | None = None,
    softcap: float | None = None,
    backend: str = "auto",
    return_lse: bool = False,
    check: bool = True,
) -> Float[Tensor, "b h i dv"] | tuple[Float[Tensor, "b h i dv"], Float[Tensor, "b h i"]]:
    """`relpos.attention` of the whole sequence, each rank giving and getting its own tokens of it.

    Every rank of the group calls it with its shards, cut as `shard` cuts them, and with the same
    other arguments. The result is that of one device: exact, with the same terms at the same
    offsets, and gradients; dropout is the same for any number of ranks.

    Gradients of what ranks share, the tables of `terms` and a mask without an axis of this rank's
    tokens, are those of this rank's rows or heads, as gradients of all other parameters are: they
    are summed (or averaged) over the group once, where data-parallel gradients are.

    Args:
        q: queries of this rank.
        k: keys of this rank.
        v: values of this rank.
        terms: the tables for the offsets of the whole sequence, and for all heads; `q_rel` is
            that of this rank's queries. `GridTerms` describe the whole grid.
        group: a process group, or a mesh of one dimension such as `mesh["cp"]`; or of two, whose
            ranks, row by row, the sequence is cut among: those along the last dimension exchange
            tokens for heads, and `method` is that of the first. Ranks must ascend from row to row,
            and all of them be there when it is used for the first time.
        layout: `"zigzag"`, for which causal work is even, or `"contiguous"`.
        key_layout: that of the keys, if it is another one; None: `layout`. `"whole"`: every rank
            gives all keys, and what belongs to them; nothing is exchanged then, whatever the
            method, and their gradients are this rank's part of the sum.
        method: `"heads"` (each rank some heads of the whole sequence; of a mesh of two dimensions
            all ranks), `"gather"` (each rank all keys for a while), `"ring"` (keys travel; memory
            is that of a rank's own tokens), or `"auto"` (`relpos.distributed.methods.choice`).
        causal: as in `relpos.attention`.
        mask: broadcasts to `(b, h, i, j)`, where `j` counts this rank's keys if `i` is 1 (a
            padding mask), else those of the whole sequence in their own order; `(b, h, 1, j)` of
            the whole sequence is taken too.
        dropout: as in `relpos.attention`; rank 0 draws the seed.
        scale: as in `relpos.attention`.
        query_start: position of the first query of the whole sequence; None: the queries are the
            last positions.
        documents: `(b or 1, j)`, those of this rank's keys.
        query_documents: `(b or 1, i)`, those of this rank's queries; None: queries and keys are
            the same tokens.
        window: as in `relpos.attention`.
        key_ranges: `(b or 1, i, 2)` for this rank's queries, in numbers of the whole sequence.
        softcap: as in `relpos.attention`.
        backend: as in `relpos.attention`; for `"gather"` and `"ring"` one that takes parts of a
            row's keys: not `"reference"`.
        return_lse: as in `relpos.attention`.
        check: whether the ranks first compare their arguments, and last tell each other whether
            they succeeded: small exchanges, before and after. Without it all shards must be of one
            length, and a rank that fails leaves the others to the time limit of their process
            group. It alone cannot be compared: it must be the same on every rank.

    Returns:
        As `relpos.attention`, of this rank's queries.

    Raises:
        ShapeError: if a shape, dtype or device does not fit `q`.
        ValueError: if an argument is out of range, differs from that of another rank, or a shard
            has not the tokens that `layout` gives it.
        TypeError: if an argument is of another kind.
        BackendError: if the backend does not support the inputs, or the method does not.
        RuntimeError: on every rank, if one of them fails or does not answer.
    """
    output, lse = attend(
        q, k, v, terms, group=group, layout=layout, key_layout=key_layout, method=method,
        causal=causal, mask=mask, dropout=dropout, scale=scale, query_start=query_start,
        documents=documents, query_documents=query_documents, window=window, key_ranges=key_ranges,
        softcap=softcap, backend=backend, return_lse=return_lse, check=check,
    )  # fmt: skip
    return output if lse is None else (output, lse)
