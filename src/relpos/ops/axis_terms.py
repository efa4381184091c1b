"""Relative logits per axis of a grid, and the values' term, by torch's autograd.

Along one axis with `n_i` coordinates of the queries and `n_j` of the keys, a token at `y`:

    A[i, c] = scale * p_i . K[c - y_i] + B[c - y_i]      query i's logit for keys at coordinate c
    D[j, c] = scale * k_j . Q[y_j - c]                   key j's logit for queries at coordinate c
    o_i    += sum_c W[i, c] V[c - y_i]                   with W the weights of keys at coordinate c

Where both sides have the same coordinates this is the shear again, along the axis. Elsewhere
(pooled queries), and on a GPU along axes that are not longer than the others together, each pair of
coordinates has its row looked up: `n_i x n_j x d` numbers, without L. That is what a GPU prefers:
half as many products, and nothing to be moved.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..offsets import axis_offsets, interpolation_points
from ..shear import absolute_to_relative, relative_to_absolute
from ..summed_rows import adds_repeated_rows_in_any_order, summed_rows
from ..terms import GridTerms, OffsetTable
from .arguments import TABLES

__all__ = [
    "axis_last",
    "axis_restored",
    "axis_tables",
    "axis_values",
    "key_axis_logits",
    "paired_product",
    "query_axis_logits",
    "rows_of_pairs",
]


def axis_tables(terms: GridTerms) -> Tensor | None:
    """`(h or 1, n)` in float32: each axis's rows of keys, queries, bias and values; None if none.

    Each coordinate of the queries selects a run of rows, one for each coordinate of the keys; of
    the rows of queries, each coordinate of the keys one for each of the queries (`_axis_rows`).

    Args:
        terms: the grid.
    """
    # Of all axes alike: the kernel tells by how many numbers there are in all.
    traced = any(isinstance(size, torch.SymInt) for size in (*terms.query_grid, *terms.shape))
    parts = []
    for number, axis in enumerate(terms.axes):
        sizes = terms.query_grid[number], terms.shape[number]
        for name in TABLES:
            table: OffsetTable | None = getattr(axis, name)
            if table is not None:
                rows = _axis_rows(table, *sizes, of_keys=name == "queries", traced=traced)
                parts.append(rows.flatten(1))
    if not parts:
        return None
    heads = max(part.shape[0] for part in parts)
    return torch.cat([part.expand(heads, -1) for part in parts], 1)


def key_axis_logits(q: Tensor, terms: GridTerms, scale: float) -> Tensor | None:
    """`(b or 1, h or 1, i, sum of the keys' grid)`: A of all axes, side by side; None if zero.

    Args:
        q: `(b, h, i, d)`, in the dtype of the computation.
        terms: the grid.
        scale: of the keys' term.
    """
    if all(axis.keys is None and axis.bias is None for axis in terms.axes):
        return None
    parts = []
    for number, axis in enumerate(terms.axes):
        sizes = terms.query_grid[number], terms.shape[number]
        part: Tensor | None = None
        if axis.keys is not None:
            p = q if axis.q_rel is None else axis.q_rel.to(q.dtype)
            part = _axis_logits(
                _on_grid(p, terms, terms.query_grid), axis.keys, number, sizes, scale
            )
        if axis.bias is not None:
            line = rows_of_pairs(axis.bias, *sizes, q.dtype)  # (h or 1, n_i, n_j)
            shape = [1] * len(terms.query_grid)
            shape[number] = sizes[0]
            bias = line.unflatten(1, shape).unsqueeze(0)
            bias = bias.expand(-1, -1, *terms.query_grid, -1)
            part = bias if part is None else part + bias
        if part is None:
            part = q.new_zeros(()).expand(1, 1, *terms.query_grid, sizes[1])
        parts.append(part)
    return _with_prefix(_side_by_side(parts), terms)


def query_axis_logits(
    k: Tensor, terms: GridTerms, dtype: torch.dtype, heads: int, scale: float
) -> Tensor | None:
    """`(b, h, j, sum of the queries' grid)`: D of all axes, side by side; None if zero.

    Args:
        k: `(b, g, j, d)`.
        terms: the grid.
        dtype: of the computation.
        heads: query heads.
        scale: of the term.
    """
    if all(axis.queries is None for axis in terms.axes):
        return None
    k = _on_grid(k.to(dtype).repeat_interleave(heads // k.shape[1], dim=1), terms, terms.shape)
    parts = []
    for number, axis in enumerate(terms.axes):
        sizes = terms.query_grid[number], terms.shape[number]
        if axis.queries is None:
            parts.append(k.new_zeros(*k.shape[:2], *terms.shape, sizes[0]))
        else:
            parts.append(_axis_logits(k, axis.queries, number, sizes, scale, of_keys=True))
    return _with_prefix(_side_by_side(parts), terms)


def axis_values(weights: Tensor, terms: GridTerms) -> Tensor:
    """`sum_a sum_c W_a[i, c] V_a[c - y_i]`, `(b, h, i, dv)`.

    Args:
        weights: `(b, h, i, sum of the keys' grid)`: summed over the keys of each coordinate.
        terms: the grid; at least one axis has values.
    """
    total: Tensor | None = None
    parts = weights[:, :, terms.prefix :].split(terms.shape, -1)
    for number, (axis, part) in enumerate(zip(terms.axes, parts, strict=True)):
        if axis.values is None:
            continue
        queries, keys = terms.query_grid[number], terms.shape[number]
        x, others = axis_last(part.unflatten(2, terms.query_grid), number)
        if _is_sheared(x, queries, keys):
            rows = _rows_by_offset(axis.values, keys, x.dtype)
            term = _product(absolute_to_relative(x), rows.mT)
        else:
            rows = rows_of_pairs(axis.values, queries, keys, x.dtype)
            term = paired_product(x, rows.transpose(2, 3))
        term = axis_restored(term, number, others)
        total = term if total is None else total + term
    assert total is not None
    return _with_prefix(total.flatten(2, -2), terms)


def _axis_logits(
    x: Tensor, table: OffsetTable, axis: int, sizes: tuple[int, int], scale: float,
    of_keys: bool = False,
) -> Tensor:  # fmt: skip
    """`scale x (b, h, *grid, d)` dotted with the row for each coordinate of the other side."""
    queries, keys = sizes
    x, others = axis_last(x, axis)
    if _is_sheared(x, queries, keys):
        rows = scale * _rows_by_offset(table, keys, x.dtype)  # as a rule fewer than tokens
        out = relative_to_absolute(_product(x, rows.flip(1) if of_keys else rows))
    else:
        rows = scale * rows_of_pairs(table, queries, keys, x.dtype)
        out = paired_product(x, rows.transpose(1, 2) if of_keys else rows)
    return axis_restored(out, axis, others)


def _is_sheared(x: Tensor, queries: int, keys: int) -> bool:
    """Whether products with all offsets are sheared; else each pair of coordinates has its row.

    Of `x (b, h, the others, n, d)`; rows of pairs are no more than tokens.
    """
    return queries == keys and not (x.is_cuda and keys <= x.shape[2])


def _product(x: Tensor, rows: Tensor) -> Tensor:
    """`x (b, h, x, y, d)` times `rows (h or 1, r, d)`: `(b, h, x, y, r)`."""
    if rows.shape[0] == 1:
        return torch.einsum("bhxyd,rd->bhxyr", x, rows[0])
    return torch.einsum("bhxyd,hrd->bhxyr", x, rows)


def paired_product(x: Tensor, rows: Tensor) -> Tensor:
    """`x (b, h, x, y, d)` times its coordinate's `rows (h or 1, y, c, d)`: `(b, h, x, y, c)`.

    Args:
        x: of one axis, as `axis_last` gives it.
        rows: of each coordinate.
    """
    if rows.shape[0] == 1:
        return torch.einsum("bhxyd,ycd->bhxyc", x, rows[0])
    return torch.einsum("bhxyd,hycd->bhxyc", x, rows)


def _axis_rows(
    table: OffsetTable, queries: int, keys: int, *, of_keys: bool, traced: bool
) -> Tensor:
    """`(h or 1, r[, d])` in float32: rows of which each coordinate of one side selects a run.

    With `u` coordinates on the side that selects and `v` on the other, coordinate `x` selects the
    `v` rows that begin at

    - `n (u - 1 - x)` where `v = n u`: there is a row for each offset.
    - `(x % n) (2 v - 1) + v - 1 - x // n` where `u = n v`: likewise, first the offsets of the
      coordinates `0, n, 2 n, ...`, then of `1, n + 1, ...`, and so on.
    - `x v` elsewhere, and where a size of any axis is a symbol: there is a row for each pair.

    Args:
        table: of one axis.
        queries: their coordinates.
        keys: theirs.
        of_keys: whether keys select.
        traced: whether sizes are symbols.
    """
    own, other = (keys, queries) if of_keys else (queries, keys)
    # Whether one divides the other would become a condition of the program.
    if own != other and (traced or max(own, other) % min(own, other)):
        rows = rows_of_pairs(table, queries, keys, torch.float32)
        return (rows.transpose(1, 2) if of_keys else rows).flatten(1, 2)
    device = table.rows.device
    if own <= other:
        ratio = 1 if own == other else other // own  # of equal symbols there is no quotient
        offsets = torch.arange(ratio * (1 - own), other, device=device)
    else:
        ratio = own // other
        whole = torch.arange(ratio * (1 - other), ratio * other, ratio, device=device)
        offsets = (whole - torch.arange(ratio, device=device)[:, None]).flatten()
    return summed_rows(table, -offsets if of_keys else offsets, torch.float32)


def _rows_by_offset(table: OffsetTable, size: int, dtype: torch.dtype) -> Tensor:
    """`(h or 1, 2 n - 1[, d])`: the rows of the offsets along an axis of `n` coordinates."""
    return summed_rows(table, torch.arange(1 - size, size, device=table.rows.device), dtype)


def rows_of_pairs(table: OffsetTable, queries: int, keys: int, dtype: torch.dtype) -> Tensor:
    """`(h or 1, n_i, n_j[, d])`: the row of each pair of coordinates along an axis."""
    if queries == keys and adds_repeated_rows_in_any_order(table.rows):
        # Row after row the same, one offset on: what flows back is summed along diagonals.
        windows = _rows_by_offset(table, keys, dtype).unfold(1, keys, 1).flip(1)
        return windows.movedim(-1, 2)
    at = axis_offsets(queries, keys, device=table.rows.device)
    total: Tensor | None = None
    for whole, share in interpolation_points(at):
        rows = summed_rows(table, whole, dtype)
        if share is not None:
            rows = rows * share.to(dtype).view(*share.shape, *[1] * (rows.ndim - 3))
        total = rows if total is None else total + rows
    assert total is not None
    return total


def axis_last(x: Tensor, axis: int) -> tuple[Tensor, tuple[int, ...]]:
    """`x (b, h, *grid, d)` with one axis last: `(b, h, the others, n, d)`, and their sizes.

    Args:
        x: tokens of a grid.
        axis: its number.
    """
    moved = x.movedim(2 + axis, -2)
    others = tuple(moved.shape[2:-2])
    return (moved.flatten(2, -3) if others else moved.unsqueeze(2)), others


def axis_restored(x: Tensor, axis: int, others: tuple[int, ...]) -> Tensor:
    """`x (b, h, the others, n, c)` on its grid again, `(b, h, *grid, c)`.

    Args:
        x: as `axis_last` gave it, with other numbers last.
        axis: the number of the axis.
        others: sizes of the others.
    """
    return (x.unflatten(2, others) if others else x.squeeze(2)).movedim(-2, 2 + axis)


def _on_grid(x: Tensor, terms: GridTerms, shape: tuple[int, ...]) -> Tensor:
    """`(b, h, *shape, d)`: the tokens of a grid."""
    return x[:, :, terms.prefix :].unflatten(2, shape)


def _side_by_side(parts: list[Tensor]) -> Tensor:
    """Parts `(b or 1, h or 1, *grid, c)` joined along the last axis, tokens in one axis."""
    # Without max: a batch may be empty.
    batch, heads = (
        next((part.shape[n] for part in parts if part.shape[n] != 1), 1) for n in (0, 1)
    )
    full = [part.expand(batch, heads, *part.shape[2:]) for part in parts]
    # Flat only when joined: a part's strides would make a condition of the map's sizes in export.
    return torch.cat(full, -1).flatten(2, -2)


def _with_prefix(x: Tensor, terms: GridTerms) -> Tensor:
    """`x (b, h, tokens, c)` after rows of zeros for the tokens before the grid."""
    return pad(x, (0, 0, terms.prefix, 0)) if terms.prefix else x
