"""The terms of two schemes as those of one: joined where they differ in kind, biases added."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, cast

import torch
from torch import Tensor

from ..errors import ShapeError
from ..summed_rows import summed_rows
from ..terms import GridTerms, OffsetTable, Terms

__all__ = ["add_tables", "join_terms", "pin_queries"]


def join_terms(owner: str, one: Terms | GridTerms, other: Terms | GridTerms) -> Terms | GridTerms:
    """What adds to attention the sum of what `one` and `other` add.

    Args:
        owner: the class on whose behalf terms are joined.
        one: terms of a line or a grid.
        other: terms of the same line or grid, or none.

    Raises:
        ValueError: if both have keys, queries or values, or belong to different grids.
    """
    if not one.tensors and isinstance(one, Terms):
        return other
    if not other.tensors and isinstance(other, Terms):
        return one
    if isinstance(one, Terms) and isinstance(other, Terms):
        return _join_lines(owner, one, other)
    if isinstance(one, GridTerms) and isinstance(other, GridTerms):
        return _join_grids(owner, one, other)
    raise ValueError(
        f"{owner}: positions must all have terms of a sequence, or all of a grid, got both"
    )


def pin_queries(
    owner: str, terms: Terms | GridTerms, q: Tensor | None, k: Tensor | None
) -> Terms | GridTerms:
    """`terms` of queries and keys that a later scheme changes.

    The op takes rows of keys times the queries that it is given, or times `q_rel`: here those that
    the terms are for. For rows of queries there is no such thing.

    Args:
        owner: the class on whose behalf it is done.
        terms: of the schemes so far.
        q: the queries that these are for, if they are about to change; else None.
        k: the keys that these are for, if they are about to change; else None.

    Raises:
        ValueError: if the terms have rows of queries, and the keys change.
    """
    if isinstance(terms, GridTerms):
        axes = (cast(Terms, pin_queries(owner, axis, q, k)) for axis in terms.axes)
        return replace(terms, axes=tuple(axes))
    if terms.queries is not None and k is not None:
        raise ValueError(
            f"{owner}: positions must come in an order in which none changes the keys after one "
            "whose terms have queries (Deberta), got one; put the latter last"
        )
    if terms.keys is not None and terms.q_rel is None and q is not None:
        return replace(terms, q_rel=q)
    return terms


def add_tables(one: OffsetTable, other: OffsetTable) -> OffsetTable:
    """A bias that is the sum of both at every offset, whatever their windows are.

    Within the union of the windows each has a row, or what it has beyond its own. Outside, both
    clamp, or both are zero, or one clamps: then the sum is that one's end row, for which there is
    one more row on either side.

    Args:
        one: scalars.
        other: scalars.

    >>> clamped = OffsetTable(torch.tensor([[1.0, 2.0]]), first=0)
    >>> dropped = OffsetTable(torch.tensor([[10.0, 20.0]]), first=1, beyond="zero")
    >>> add_tables(clamped, dropped).rows, add_tables(clamped, dropped).first
    (tensor([[ 1.,  1., 12., 22.,  2.]]), -1)
    """
    margin = 0 if one.beyond == other.beyond else 1
    # `sym_min` and `sym_max`, since a window may follow a length that `torch.compile` has a symbol
    # for; for the same reason no window is asked whether it is the other.
    first = cast(int, torch.sym_min(one.first, other.first)) - margin
    last = cast(int, torch.sym_max(one.last, other.last)) + margin
    both_zero = one.beyond == other.beyond == "zero"
    beyond: Literal["clamp", "zero"] = "zero" if both_zero else "clamp"
    at = torch.arange(first, last + 1, device=one.rows.device)
    dtype = torch.promote_types(one.rows.dtype, other.rows.dtype)
    wide = torch.promote_types(dtype, torch.float32)
    rows = [summed_rows(table, at, wide) for table in (one, other)]
    return OffsetTable((rows[0] + rows[1]).to(dtype), first, beyond)


def _join_lines(owner: str, one: Terms, other: Terms) -> Terms:
    tables, others = one.tables, other.tables
    for name in ("keys", "queries", "values"):
        if name in tables and name in others:
            raise ValueError(
                f"{owner}: positions must have at most one table of {name} between them, got two; "
                "only biases are added"
            )
    both = tables | others
    if one.bias is not None and other.bias is not None:
        _check_device(owner, one.bias.rows, other.bias.rows)
        both["bias"] = add_tables(one.bias, other.bias)
    q_rel = one.q_rel if other.q_rel is None else other.q_rel
    return Terms(**both, q_rel=q_rel)


def _join_grids(owner: str, one: GridTerms, other: GridTerms) -> GridTerms:
    grids = [(each.shape, each.query_grid, each.prefix) for each in (one, other)]
    if grids[0] != grids[1]:
        named = " and ".join(
            f"{keys} with {prefix} tokens before it and queries of {queries}"
            for keys, queries, prefix in grids
        )
        raise ValueError(f"{owner}: positions must all have terms of the same grid, got {named}")
    axes = tuple(_join_lines(owner, *both) for both in zip(one.axes, other.axes, strict=True))
    joint_bias = one.joint_bias
    if joint_bias is None:
        joint_bias = other.joint_bias
    elif other.joint_bias is not None:
        _check_device(owner, joint_bias, other.joint_bias)
        joint_bias = joint_bias + other.joint_bias
    return replace(one, axes=axes, joint_bias=joint_bias)


def _check_device(owner: str, one: Tensor, other: Tensor) -> None:
    if one.device != other.device:
        raise ShapeError(
            f"{owner}: positions must have their biases on one device, "
            f"got {one.device} and {other.device}"
        )
