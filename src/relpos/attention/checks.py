"""Every check of `relpos.attention`'s arguments, made once, before any backend runs."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import ShapeError, check_shape
from ..terms import Terms

__all__ = ["check_attention"]

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def check_attention(
    name: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    terms: Terms,
    mask: Tensor | None,
    dropout: float,
) -> None:
    """Raise an error in the function's name: the argument, the rule, and what was given."""
    if not isinstance(terms, Terms):
        raise TypeError(f"{name}: terms must be Terms or GridTerms, got {type(terms).__name__}")
    _check_qkv(name, q, k, v)
    _check_terms(name, q, k, v, terms)
    if mask is not None:
        _check_mask(name, q, k, mask)
    if not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise ValueError(f"{name}: dropout must be in 0 <= dropout < 1, got {dropout!r}")


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


def _check_terms(name: str, q: Tensor, k: Tensor, v: Tensor, terms: Terms) -> None:
    b, h, i, d = q.shape
    if terms.q_rel is not None:
        check_shape(name, "terms.q_rel", terms.q_rel, "b h i d_rel", {"b": b, "h": h, "i": i})
        _check_kind(name, "terms.q_rel", terms.q_rel, q)
    widths = {
        "keys": d if terms.q_rel is None else terms.q_rel.shape[3],
        "queries": d,
        "values": v.shape[3],
    }
    for part, table in terms.tables.items():
        argument, heads = f"terms.{part}.rows", {"h": (1, h)}
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
