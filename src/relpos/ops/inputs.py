"""From the arguments of `relpos.attention` to what every backend receives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from ..autocast import autocasts
from ..checks import check_count
from ..terms import GridTerms, Terms
from ..traced_sizes import is_jit_tracing, keep_lengths
from .argument_checks import check_attention, check_documents, check_kinds, check_settings
from .locality import AnyKeyRanges, AnyWindow, Window, resolve_key_ranges, resolve_window

__all__ = [
    "DropoutOrigin",
    "Inputs",
    "autocast_dtype",
    "flatten_1d_grid",
    "in_autocast_dtype",
    "prepare",
    "wide_dtype",
    "with_four_axes",
    "without_values",
]


@dataclass(slots=True)
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
        query_documents: `(b or 1, i)`, those of the queries, in the dtype of `documents`; None:
            those at the queries' positions.
        key_ranges: `(b or 1, i, 2)` in int64, the keys `lo..hi-1` of each query; or None.
        axis_ranges: `(b or 1, s, 2)` in int64, for the coordinates of the queries' grid along one
            axis after another, `s` in all, the coordinates `lo..hi-1` of keys that they see; or
            None.
        window: `(left, right)` for each axis, of which a line of tokens has one: the offsets
            `-left..right` take part, None: no limit on that side; empty without a window.
        softcap: c of `c tanh(s / c)`, or None.
        return_lse: whether the log-sum-exp is asked for.
        seed: of the dropout, `()` in int64; None: drawn by the backend.
        dropout_origin: where the call lies in one of which it is a part; None: it is whole.
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
    query_documents: Tensor | None
    key_ranges: Tensor | None
    axis_ranges: Tensor | None
    window: tuple[Window, ...]
    softcap: float | None
    return_lse: bool
    seed: Tensor | None = None
    dropout_origin: DropoutOrigin | None = None


class DropoutOrigin(NamedTuple):
    """Where a call's heads, queries and keys lie in a larger one, whose dropout it is to draw.

    Args:
        heads: query heads of the larger call.
        first_head: this call's first head among them.
        queries: queries of the larger call.
        first_query: this call's first query among them.
        first_key: this call's first key among those of the larger call.
    """

    heads: int
    first_head: int
    queries: int
    first_query: int
    first_key: int


def prepare(
    function: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    terms: Terms | GridTerms,
    mask: Tensor | None = None,
    documents: Tensor | None = None,
    key_ranges: AnyKeyRanges = None,
    query_documents: Tensor | None = None,
    *,
    causal: bool = False,
    dropout: float = 0.0,
    scale: float | None = None,
    query_start: int | None = None,
    window: AnyWindow = None,
    softcap: float | None = None,
    return_lse: bool = False,
) -> Inputs:
    """The arguments of `relpos.attention` checked, in autocast's dtype, with defaults filled in.

    Errors are worded in the name of `function`.
    """
    check_kinds(function, q, k, v, terms, mask, documents, query_documents)
    check_settings(
        function, causal=causal, dropout=dropout, scale=scale, softcap=softcap,
        return_lse=return_lse,
    )  # fmt: skip
    if autocasts(q):
        q, k, v, terms = in_autocast_dtype(q, k, v, terms)
    check_attention(
        function, q, k, v, terms, mask, documents, causal=causal, query_start=query_start
    )
    are_last = query_start is None
    if query_start is None:
        query_start = k.shape[2] - q.shape[2]
    else:
        query_start = check_count(function, "query_start", query_start, least=None)
    if documents is not None or query_documents is not None:
        documents, query_documents = check_documents(
            function, q, k.shape[2], documents, query_documents, query_start
        )
    ranges, axis_ranges = resolve_key_ranges(function, key_ranges, q, terms)
    sides = resolve_window(function, window, terms)
    if is_jit_tracing():  # after all that a size may have gone into
        ordered = bool(terms.tensors) or causal or window is not None or documents is not None
        has_grid, has_offsets = isinstance(terms, GridTerms), ordered and are_last
        q = keep_lengths(q, k, has_grid=has_grid, has_offsets=has_offsets)
    flat_terms = flatten_1d_grid(terms)
    if isinstance(flat_terms, Terms) and axis_ranges is not None:
        ranges, axis_ranges = axis_ranges, None  # the only axis's
    return Inputs(
        q=q,
        k=k,
        v=v,
        terms=flat_terms,
        causal=causal,
        mask=None if mask is None else with_four_axes(mask),
        dropout=float(dropout),
        scale=1 / sqrt(q.shape[3]) if scale is None else float(scale),
        query_start=query_start,
        documents=documents,
        query_documents=query_documents,
        key_ranges=ranges,
        axis_ranges=axis_ranges,
        window=sides,
        softcap=None if softcap is None else float(softcap),
        return_lse=return_lse,
    )


def flatten_1d_grid(terms: Terms | GridTerms) -> Terms | GridTerms:
    """A grid that is only a sequence of tokens as plain `Terms`."""
    if (
        isinstance(terms, Terms)
        or len(terms.shape) > 1
        or terms.prefix
        or terms.joint_bias is not None
        or terms.query_grid != terms.shape
    ):
        return terms
    return terms.axes[0]


def without_values(terms: Terms | GridTerms) -> Terms | GridTerms:
    """The terms that act on the scores."""
    if isinstance(terms, GridTerms):
        return replace(terms, axes=tuple(replace(axis, values=None) for axis in terms.axes))
    return replace(terms, values=None) if isinstance(terms, Terms) else terms


def wide_dtype(x: Tensor) -> torch.dtype:
    """The dtype of `x` with 32 bits at least, in which scores are computed."""
    return torch.promote_types(x.dtype, torch.float32)


def with_four_axes(mask: Tensor) -> Tensor:
    """A mask with axes of 1 before its own."""
    return mask[(None,) * (4 - mask.ndim)] if mask.ndim < 4 else mask


def in_autocast_dtype(
    q: Tensor, k: Tensor, v: Tensor, terms: Terms | GridTerms
) -> tuple[Tensor, Tensor, Tensor, Terms | GridTerms]:
    """What autocast casts of a call."""
    cast = partial(autocast_dtype, q)
    return cast(q), cast(k), cast(v), terms.map(cast)


def autocast_dtype(q: Tensor, x: Tensor) -> Tensor:
    """`x` in the dtype of autocast on the device of `q`, as SDPA takes it; float64 stays."""
    return x if x.dtype == torch.float64 else x.to(torch.get_autocast_dtype(q.device.type))
