"""Every check of `relpos.attention`'s arguments, made once, before any backend runs."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import ShapeError, check_shape
from ..terms import GridTerms, Terms

__all__ = ["check_attention"]

_NAME = "attention"


def check_attention(
    q: Tensor, k: Tensor, v: Tensor, terms: Terms | GridTerms, mask: Tensor | None, dropout: float
) -> None:
    """Raise a `ShapeError` or `ValueError` that names the argument, the rule and what was given."""
    _check_qkv(q, k, v)
    if isinstance(terms, Terms):
        _check_terms(q, k, v, terms)
    elif not isinstance(terms, GridTerms):
        raise TypeError(f"{_NAME}: terms must be Terms or GridTerms, got {type(terms).__name__}")
    if mask is not None:
        _check_mask(q, k, mask)
    if not 0 <= dropout < 1:
        raise ValueError(f"{_NAME}: dropout must be in 0 <= dropout < 1, got {dropout}")


def _check_qkv(q: Tensor, k: Tensor, v: Tensor) -> None:
    check_shape(_NAME, "q", q, "b h i d", {})
    b, h, _, d = q.shape
    check_shape(_NAME, "k", k, "b g j d", {"b": b, "d": d})
    check_shape(_NAME, "v", v, "b g j dv", {"b": b, "g": k.shape[1], "j": k.shape[2]})
    g = k.shape[1]
    if g == 0 or h % g:
        raise ShapeError(
            f"{_NAME}: q must have a multiple of k's heads, got {h} query and {g} key heads"
        )
    if not q.is_floating_point():
        raise ShapeError(f"{_NAME}: q must be a floating point tensor, got {q.dtype}")
    for name, tensor in (("k", k), ("v", v)):
        _check_kind(name, tensor, q)


def _check_terms(q: Tensor, k: Tensor, v: Tensor, terms: Terms) -> None:
    b, h, i, d = q.shape
    if terms.q_rel is not None:
        check_shape(_NAME, "terms.q_rel", terms.q_rel, "b h i d_rel", {"b": b, "h": h, "i": i})
        _check_kind("terms.q_rel", terms.q_rel, q)
    widths = {
        "keys": d if terms.q_rel is None else terms.q_rel.shape[3],
        "queries": d,
        "values": v.shape[3],
    }
    for name, table in terms.tables.items():
        heads = {"h": (1, h)}
        if name == "bias":
            check_shape(_NAME, "terms.bias.rows", table.rows, "h r", heads)
        else:
            check_shape(
                _NAME, f"terms.{name}.rows", table.rows, "h r d", {**heads, "d": widths[name]}
            )
        _check_kind(f"terms.{name}.rows", table.rows, q)


def _check_mask(q: Tensor, k: Tensor, mask: Tensor) -> None:
    full = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    fits = mask.ndim <= 4 and all(
        have in (1, want) for have, want in zip(reversed(mask.shape), reversed(full), strict=False)
    )
    if not fits:
        raise ShapeError(
            f"{_NAME}: mask must broadcast to (b, h, i, j) = {full}, got {tuple(mask.shape)}"
        )
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise ShapeError(
            f"{_NAME}: mask must be boolean (True takes part) or floating point, got {mask.dtype}"
        )
    if mask.device != q.device:
        raise ShapeError(f"{_NAME}: mask must be on {q.device} as q is, got {mask.device}")


def _check_kind(name: str, tensor: Tensor, q: Tensor) -> None:
    if tensor.dtype != q.dtype or tensor.device != q.device:
        raise ShapeError(
            f"{_NAME}: {name} must be {q.dtype} on {q.device} as q is, "
            f"got {tensor.dtype} on {tensor.device}"
        )
