"""`attention` of nested tensors: that of their rows, whose sequences are documents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..errors import ShapeError
from ..jagged import check_jagged, check_only_jagged, documents_of, jagged_like, row_of
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
        ShapeError: if one of them is not jagged like this, or `k` and `v` have other lengths.
        ValueError: if something is given that numbers tokens, or offsets count where queries and
            keys have other lengths.
    """
    for name, x, axes in (("q", q, "b h i d"), ("k", k, "b g j d"), ("v", v, "b g j dv")):
        check_jagged("attention", name, x, axes, axes.split()[2])
    check_only_jagged("attention", others)
    if k.shape[2] != v.shape[2]:
        raise ShapeError(
            f"attention: v must have k's offsets, got {tuple(v.shape)} beside {tuple(k.shape)}"
        )
    alike = q.shape[2] == k.shape[2]
    if not isinstance(terms, Terms):
        raise ValueError(
            f"attention: terms must be Terms with nested tensors, got {type(terms).__name__}"
        )
    if not alike and (terms.tensors or causal or window is not None):
        raise ValueError(
            "attention: q must have k's offsets where the order of tokens counts (terms, causal, "
            f"window), got {tuple(q.shape)} beside {tuple(k.shape)}"
        )
    found = attention(
        row_of(q), row_of(k), row_of(v), terms, causal=causal, window=window,
        documents=documents_of(k, axis=2),
        query_documents=None if alike else documents_of(q, axis=2),
        return_lse=return_lse, **options,
    )  # fmt: skip
    if not return_lse:
        return jagged_like(found, q, axis=2)
    return tuple(jagged_like(x, q, axis=2) for x in found)
