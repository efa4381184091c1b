"""The terms of a grid as numbers by place, in `O(L (h + w))`, with torch's own autograd.

For one axis with `n_i` places of the queries and `n_j` of the keys, and the token's place `y`:

    A[i, c] = scale * p_i . K[c - y_i] + B[c - y_i]      what query i gives to keys at place c
    D[j, c] = scale * k_j . Q[y_j - c]                   what key j gives to queries at place c
    o_i    += sum_c W[i, c] V[c - y_i]                   with W the weights summed by place
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import embedding

from ...offsets import axis_offsets, table_rows
from ...terms import GridTerms, OffsetTable

__all__ = ["by_key_place", "by_query_place", "values_by_place"]


def by_key_place(q: Tensor, terms: GridTerms, scale: float) -> Tensor | None:
    """`(b or 1, h or 1, i, sum of the keys' places)`: A of all axes, side by side; None if zero.

    Args:
        q: `(b, h, i, d)`, in the dtype of the computation.
        terms: the grid.
        scale: of the keys' term.
    """
    if all(axis.keys is None and axis.bias is None for axis in terms.axes):
        return None
    parts = []
    for number, axis in enumerate(terms.axes):
        sizes = terms.queries[number], terms.shape[number]
        part = q.new_zeros(1, 1, *terms.queries, sizes[1])
        if axis.keys is not None:
            p = _placed(q if axis.q_rel is None else axis.q_rel.to(q.dtype), terms, terms.queries)
            rows = scale * _pairs(axis.keys, *sizes, q.dtype)
            part = part + _product(p, rows, number)
        if axis.bias is not None:
            line = _pairs(axis.bias, *sizes, q.dtype)  # (h or 1, n_i, n_j)
            shape = [1] * len(terms.queries)
            shape[number] = sizes[0]
            part = part + line.unflatten(1, shape).unsqueeze(0)
        parts.append(part)
    return _with_prefix(_side_by_side(parts), terms)


def by_query_place(k: Tensor, terms: GridTerms, heads: int, scale: float) -> Tensor | None:
    """`(b, h, j, sum of the queries' places)`: D of all axes, side by side; None if zero.

    Args:
        k: `(b, g, j, d)`, in the dtype of the computation.
        terms: the grid.
        heads: query heads.
        scale: of the term.
    """
    if all(axis.queries is None for axis in terms.axes):
        return None
    k = _placed(k.repeat_interleave(heads // k.shape[1], dim=1), terms, terms.shape)
    parts = []
    for number, axis in enumerate(terms.axes):
        sizes = terms.queries[number], terms.shape[number]
        if axis.queries is None:
            parts.append(k.new_zeros(*k.shape[:2], *terms.shape, sizes[0]))
        else:
            rows = scale * _pairs(axis.queries, *sizes, k.dtype).transpose(1, 2)
            parts.append(_product(k, rows, number))
    return _with_prefix(_side_by_side(parts), terms)


def values_by_place(weights: Tensor, terms: GridTerms) -> Tensor:
    """`sum_a sum_c W_a[i, c] V_a[c - y_i]`, `(b, h, i, dv)`.

    Args:
        weights: `(b, h, i, sum of the keys' places)`: summed over the keys of each place.
        terms: the grid; at least one axis has values.
    """
    total: Tensor | None = None
    parts = weights[:, :, terms.prefix :].split(terms.shape, -1)
    for number, (axis, part) in enumerate(zip(terms.axes, parts, strict=True)):
        if axis.values is None:
            continue
        sizes = terms.queries[number], terms.shape[number]
        rows = _pairs(axis.values, *sizes, weights.dtype).transpose(2, 3)  # (h or 1, n_i, d, n_j)
        term = _product(part.unflatten(2, terms.queries), rows, number)
        total = term if total is None else total + term
    assert total is not None
    return _with_prefix(total, terms)


def _pairs(table: OffsetTable, queries: int, keys: int, dtype: torch.dtype) -> Tensor:
    """`(h or 1, n_i, n_j[, d])`: the row that each pair of places along an axis meets."""
    at = axis_offsets(queries, keys, device=table.rows.device)
    rows = table.rows.to(dtype)
    if at.is_floating_point():
        low = at.floor()
        share = (at - low).to(dtype)
        share = share.unsqueeze(-1) if rows.ndim == 3 else share
        low = low.long()
        return (1 - share) * _picked(table, rows, low) + share * _picked(table, rows, low + 1)
    return _picked(table, rows, at)


def _picked(table: OffsetTable, rows: Tensor, at: Tensor) -> Tensor:
    index, inside = table_rows(table, at)
    # An embedding, whose gradient is summed in a fixed order on every device.
    flat = rows.transpose(0, 1).flatten(1)
    picked = embedding(index, flat).unflatten(-1, (rows.shape[0], *rows.shape[2:])).movedim(2, 0)
    if inside is None:
        return picked
    return picked.where(inside.unsqueeze(-1) if rows.ndim == 3 else inside, 0)


def _product(x: Tensor, rows: Tensor, axis: int) -> Tensor:
    """`x (b, h, *grid, d)` times `rows (h or 1, n, c, d)` of its place along an axis, `(.., c)`."""
    moved = x.movedim(2 + axis, 2)
    others = moved.shape[3:-1]
    flat = moved.flatten(3, -2) if others else moved.unsqueeze(3)
    if rows.shape[0] == 1:
        out = torch.einsum("bhyxd,ycd->bhyxc", flat, rows[0])
    else:
        out = torch.einsum("bhyxd,hycd->bhyxc", flat, rows)
    out = out.unflatten(3, others) if others else out.squeeze(3)
    return out.movedim(2, 2 + axis)


def _placed(x: Tensor, terms: GridTerms, shape: tuple[int, ...]) -> Tensor:
    """`(b, h, *shape, d)`: the tokens of a grid."""
    return x[:, :, terms.prefix :].unflatten(2, shape)


def _side_by_side(parts: list[Tensor]) -> Tensor:
    """Parts `(b or 1, h or 1, *grid, c)` joined along the last axis, tokens in one axis."""
    batch, heads = (max(part.shape[n] for part in parts) for n in (0, 1))
    full = [part.expand(batch, heads, *part.shape[2:]) for part in parts]
    # Flat only when joined: a part's strides would make a condition of the map's sizes in export.
    return torch.cat(full, -1).flatten(2, -2)


def _with_prefix(x: Tensor, terms: GridTerms) -> Tensor:
    """`x (.., tokens, c)` after rows of zeros for the tokens before the grid."""
    return torch.nn.functional.pad(x.flatten(2, -2), (0, 0, terms.prefix, 0))
