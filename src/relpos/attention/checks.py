"""Every check of `relpos.attention`'s arguments, made once, before any backend runs."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import ShapeError, check_shape
from ..terms import GridTerms, Terms

__all__ = ["check_attention", "check_documents", "check_grid"]

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def check_attention(
    name: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    terms: Terms | GridTerms,
    mask: Tensor | None,
    dropout: float,
) -> None:
    """Raise an error in the function's name: the argument, the rule, and what was given."""
    if not isinstance(terms, Terms | GridTerms):
        raise TypeError(f"{name}: terms must be Terms or GridTerms, got {type(terms).__name__}")
    _check_qkv(name, q, k, v)
    if isinstance(terms, Terms):
        _check_terms(name, "terms", q, k, v, terms)
    if mask is not None:
        _check_mask(name, q, k, mask)
    if not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise ValueError(f"{name}: dropout must be in 0 <= dropout < 1, got {dropout!r}")


def check_grid(
    name: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    terms: GridTerms,
    *,
    causal: bool,
    query_start: int | None,
) -> Terms | GridTerms:
    """The terms checked; those of a line of tokens as plain `Terms`."""
    for argument, tensor, tokens, shape in (
        ("q", q, terms.query_tokens, terms.queries),
        ("k", k, terms.tokens, terms.shape),
    ):
        if tensor.shape[2] != tokens:
            raise ShapeError(
                f"{name}: {argument} must have {tokens} tokens, {terms.prefix} and the whole grid "
                f"{shape}, got {tensor.shape[2]}"
            )
    if query_start is not None:
        raise ValueError(
            f"{name}: query_start must be None with GridTerms, which place each token, "
            f"got {query_start}"
        )
    if causal and terms.queries != terms.shape:
        raise ValueError(
            f"{name}: causal must be False where queries {terms.queries} and keys {terms.shape} "
            "have grids of their own, got True"
        )
    for axis, some in enumerate(terms.axes):
        _check_terms(name, f"terms.axes[{axis}]", q, k, v, some)
    if terms.joint is not None:
        # `==` one by one: sizes may be symbolic, which `in` mistakes.
        if not any(terms.joint.shape[0] == allowed for allowed in (1, q.shape[1])):
            raise ShapeError(
                f"{name}: terms.joint must have 1 or h={q.shape[1]} heads, "
                f"got {tuple(terms.joint.shape)}"
            )
        _check_kind(name, "terms.joint", terms.joint, q)
    alone = len(terms.shape) == 1 and not terms.prefix and terms.queries == terms.shape
    return terms.axes[0] if alone and terms.joint is None else terms


def check_documents(
    name: str, q: Tensor, keys: int, documents: Tensor, query_start: int | None
) -> None:
    """Raise unless `documents` numbers each of the `keys` positions, the queries' among them."""
    if not isinstance(documents, Tensor):
        raise TypeError(f"{name}: documents must be a tensor, got {type(documents).__name__}")
    check_shape(name, "documents", documents, "b j", {"b": (1, q.shape[0]), "j": keys})
    if documents.is_floating_point() or documents.dtype == torch.bool:
        raise ShapeError(f"{name}: documents must be integers, got {documents.dtype}")
    if documents.device != q.device:
        raise ShapeError(f"{name}: documents must be on {q.device} as q is, got {documents.device}")
    start = keys - q.shape[2] if query_start is None else query_start
    if start < 0 or start + q.shape[2] > keys:
        raise ValueError(
            f"{name}: query_start must place the queries among the {keys} positions of "
            f"documents, got {start} for {q.shape[2]} queries"
        )


def _check_qkv(name: str, q: Tensor, k: Tensor, v: Tensor) -> None:
    check_shape(name, "q", q, "b h i d", {})
    b, h, _, d = q.shape
    check_shape(name, "k", k, "b g j d", {"b": b, "d": d})
    check_shape(name, "v", v, "b g j dv", {"b": b, "g": k.shape[1], "j": k.shape[2]})
    g = k.shape[1]
    if g == 0 or h == 0 or h % g:
        raise ShapeError(
            f"{name}: q must have a multiple of k's heads, got {h} query and {g} key heads"
        )
    if d == 0:
        raise ShapeError(f"{name}: q must be at least one number wide, got {tuple(q.shape)}")
    if q.dtype not in _DTYPES:
        names = ", ".join(str(dtype) for dtype in _DTYPES)
        raise ShapeError(f"{name}: q must be one of {names}, got {q.dtype}")
    for argument, tensor in (("k", k), ("v", v)):
        _check_kind(name, argument, tensor, q)


def _check_terms(name: str, of: str, q: Tensor, k: Tensor, v: Tensor, terms: Terms) -> None:
    b, h, i, d = q.shape
    if terms.q_rel is not None:
        check_shape(name, f"{of}.q_rel", terms.q_rel, "b h i d_rel", {"b": b, "h": h, "i": i})
        _check_kind(name, f"{of}.q_rel", terms.q_rel, q)
    widths = {
        "keys": d if terms.q_rel is None else terms.q_rel.shape[3],
        "queries": d,
        "values": v.shape[3],
    }
    for part, table in terms.tables.items():
        argument, heads = f"{of}.{part}.rows", {"h": (1, h)}
        if part == "bias":
            check_shape(name, argument, table.rows, "h r", heads)
        else:
            check_shape(name, argument, table.rows, "h r d", heads | {"d": widths[part]})
        _check_kind(name, argument, table.rows, q)


def _check_mask(name: str, q: Tensor, k: Tensor, mask: Tensor) -> None:
    if not isinstance(mask, Tensor):
        raise TypeError(f"{name}: mask must be a tensor or None, got {type(mask).__name__}")
    full = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    fits = mask.ndim <= 4 and all(
        have in (1, want) for have, want in zip(reversed(mask.shape), reversed(full), strict=False)
    )
    if not fits:
        raise ShapeError(
            f"{name}: mask must broadcast to (b, h, i, j) = {full}, got {tuple(mask.shape)}"
        )
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise ShapeError(
            f"{name}: mask must be boolean (True takes part) or floating point, got {mask.dtype}"
        )
    if mask.device != q.device:
        raise ShapeError(f"{name}: mask must be on {q.device} as q is, got {mask.device}")


def _check_kind(function: str, name: str, tensor: Tensor, q: Tensor) -> None:
    if tensor.dtype != q.dtype or tensor.device != q.device:
        raise ShapeError(
            f"{function}: {name} must be {q.dtype} on {q.device} as q is, "
            f"got {tensor.dtype} on {tensor.device}"
        )
