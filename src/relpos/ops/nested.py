"""`attention` of nested tensors: that of their rows, whose sequences are documents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..jagged import (
    check_alike,
    check_jagged,
    check_only_jagged,
    documents_of,
    have_same_offsets,
    jagged_like,
    row_of,
)
from ..terms import Terms

__all__ = ["attention_of_nested"]


def attention_of_nested(
    attention: Callable[..., Any],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    terms: Any,
    others: dict[str, Any],
    *,
    causal: bool,
    window: Any,
    return_lse: bool,
    **options: Any,
) -> Any:
    """The output `(b, h, i, dv)` and, if asked for, the log-sum-exp `(b, h, i)`, nested like `q`.

    Args:
        attention: `relpos.attention`.
        q: `(b, h, i, d)`, jagged along i.
        k: `(b, g, j, d)`, jagged along j.
        v: `(b, g, j, dv)`, likewise.
        terms: as in `relpos.attention`.
        others: what must not be given.
        causal: as in `relpos.attention`.
        window: likewise.
        return_lse: likewise.
        **options: likewise.

    Raises:
        ShapeError: if one of them is not jagged like this, `k` and `v` were not made with the same
            offsets, or `q` has not as many sequences.
        TypeError: if `terms` are no `Terms`.
        ValueError: if something is given that numbers tokens, or the order of tokens matters where
            queries and keys do not share their offsets.
    """
    for name, x, axes in (("q", q, "b h i d"), ("k", k, "b g j d"), ("v", v, "b g j dv")):
        check_jagged("attention", name, x, axes, axes.split()[2])
    check_only_jagged("attention", others)
    check_alike("attention", "v", v, "k", k, axis=2)
    check_alike("attention", "q", q, "k", k)
    alike = have_same_offsets(q, k, axis=2)
    if not isinstance(terms, Terms):
        raise TypeError(
            f"attention: terms must be Terms with nested tensors, got {type(terms).__name__}"
        )
    if terms.q_rel is not None:
        raise ValueError("attention: terms.q_rel must be None with nested tensors, got one")
    if not alike and (terms.tensors or causal or window is not None):
        raise ValueError(
            "attention: q must be made with k's offsets (k.offsets()) where the order of tokens "
            f"matters (terms, causal, window), got {tuple(q.shape)} beside {tuple(k.shape)}"
        )
    found = attention(
        row_of(q, axis=2), row_of(k, axis=2), row_of(v, axis=2), terms, causal=causal,
        window=window, documents=documents_of(k, axis=2),
        query_documents=None if alike else documents_of(q, axis=2),
        return_lse=return_lse, **options,
    )  # fmt: skip
    if not return_lse:
        return jagged_like(found, q, axis=2)
    return tuple(jagged_like(x, q, axis=2) for x in found)
