"""Offsets between positions, and the rows of a table that they select: plain maps of integers.

`offset = key position - query position` everywhere in relpos; negative looks back.
"""

from __future__ import annotations

from math import log
from typing import cast

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from .terms import OffsetTable

__all__ = [
    "axis_coordinates",
    "axis_offsets",
    "call_offsets",
    "deberta_buckets",
    "grid_coordinates",
    "interpolation_points",
    "offsets",
    "row_indices",
    "rows_at",
    "t5_buckets",
]


def offsets(
    queries: int, keys: int, *, query_start: int | None = None, device: torch.device | None = None
) -> Int64[Tensor, "i j"]:
    """`j - (query_start + i)` for every pair of a query `i` and a key `j`, in tokens.

    Args:
        queries: number of queries.
        keys: number of keys.
        query_start: position of the first query; None means that the queries are the last ones.
        device: where the result is made.

    >>> offsets(2, 3)
    tensor([[-1,  0,  1],
            [-2, -1,  0]])
    """
    query_start = keys - queries if query_start is None else query_start
    columns = torch.arange(keys, device=device)
    rows = torch.arange(query_start, query_start + queries, device=device)
    return columns - rows[:, None]


def call_offsets(
    query_start: int,
    queries: int,
    keys: int,
    *,
    causal: bool,
    window: tuple[int | None, int | None] = (None, None),
) -> tuple[int, int]:
    """The least and the largest offset of a call: one at least, even where no pair takes part.

    Args:
        query_start: position of the first query, in tokens.
        queries: number of queries.
        keys: number of keys.
        causal: whether keys ahead of the query are left out.
        window: the offsets `-left..right` that take part, None: no limit on that side.

    >>> call_offsets(4, 3, 7, causal=False), call_offsets(4, 3, 7, causal=True, window=(2, None))
    ((-6, 2), (-2, 0))
    """
    first, last = 1 - query_start - queries, keys - 1 - query_start
    left, right = window[0], 0 if causal else window[1]
    # `sym_min` and `sym_max`, since lengths may be symbols of `torch.compile`.
    last = last if right is None else cast(int, torch.sym_min(last, right))
    first = first if left is None else cast(int, torch.sym_max(first, -left))
    return first, cast(int, torch.sym_max(first, last))


def axis_offsets(
    queries: int, keys: int, *, device: torch.device | None = None
) -> Int64[Tensor, "i j"] | Float[Tensor, "i j"]:
    """Offsets along one axis of a grid, in steps of the finer of the two sides.

    Coordinates on the coarser side are `finer / coarser` steps apart, as in the code of MViTv2 (Li
    et al. 2022, section 4.1), whose queries and keys are pooled as in MViT (Fan et al. 2021); where
    that is no integer, nor are the offsets, which are float64 then.

    Args:
        queries: size of the queries' grid along the axis.
        keys: size of the keys' grid.
        device: where the result is made.

    >>> axis_offsets(2, 4)
    tensor([[ 0,  1,  2,  3],
            [-2, -1,  0,  1]])
    """
    finer = max(queries, keys)
    of_keys, of_queries = (
        axis_coordinates(count, finer, device=device) for count in (keys, queries)
    )
    return of_keys - of_queries[:, None]


def axis_coordinates(
    count: int, finer: int, *, device: torch.device | None = None
) -> Int64[Tensor, "n"] | Float[Tensor, "n"]:
    """The coordinates of `count` tokens along an axis, in steps of a grid that has `finer` there.

    Args:
        count: tokens along the axis.
        finer: those of the finer of two grids; where it is no multiple, the result is float64.
        device: where the result is made.

    >>> axis_coordinates(2, 4)
    tensor([0, 2])
    """
    coordinates = torch.arange(count, device=device)
    # An exported program is one for all sizes; ONNX would not even keep a condition on them.
    between = isinstance(finer, torch.SymInt) and finer != count
    # Not `divmod`: `torch.compile` cannot take it of sizes that are symbols.
    if between or finer % count:
        return coordinates.double() * (finer / count)
    return coordinates * (finer // count)


def interpolation_points(at: Tensor) -> list[tuple[Int64[Tensor, "..."], Tensor | None]]:
    """The integer offsets next to each of `at`, with their weights in linear interpolation.

    Integers are their own, without a weight; others lie between two.

    >>> interpolation_points(torch.tensor([0.0, 1.25], dtype=torch.float64))
    [(tensor([0, 1]), tensor([1.0000, 0.7500], dtype=torch.float64)), (tensor([1, 2]), \
tensor([0.0000, 0.2500], dtype=torch.float64))]
    """
    if not at.is_floating_point():
        return [(at, None)]
    low = at.floor()
    return [(low.long(), 1 - (at - low)), (low.long() + 1, at - low)]


def grid_coordinates(
    tokens: Int64[Tensor, "i"], shape: tuple[int, ...]
) -> list[Int64[Tensor, "i"]]:
    """The coordinate along each axis of tokens numbered in row-major order.

    >>> grid_coordinates(torch.tensor([0, 4, 5]), (2, 3))
    [tensor([0, 1, 1]), tensor([0, 1, 2])]
    """
    coordinates = []
    for size in reversed(shape):
        coordinates.append(tokens % size)
        tokens = tokens // size
    return coordinates[::-1]


def deberta_buckets(
    at: Int64[Tensor, "..."], *, max_distance: int, buckets: int | None = None
) -> Int64[Tensor, "..."]:
    """`clip(n + f(-at), 0, 2 n - 1)`: the row of DeBERTa's embedding for each offset.

    He et al. 2021, eq. 3, counts query minus key. Without buckets `f` is the identity and
    `n = max_distance`, so that distance `n` behind the query shares the row of `n - 1`. With
    them `n = buckets` and, for `m = buckets / 2`, `f(x) = x` up to `|x| = m` and beyond
    `f(x) = sign(x) * (m + ceil((m - 1) * log(|x| / m) / log((max_distance - 1) / m)))`,
    as in DeBERTa-v2's code. Either way nothing changes outside `1 - max_distance..max_distance`.

    Args:
        at: offsets, key minus query.
        max_distance: distance, in tokens, from which on all share a row; above `buckets / 2 + 1`.
        buckets: half the number of rows, even and at least 4; None means `max_distance`.

    >>> deberta_buckets(torch.arange(-4, 5), max_distance=3)
    tensor([5, 5, 5, 4, 3, 2, 1, 0, 0])
    >>> deberta_buckets(torch.arange(-8, 9, 2), max_distance=8, buckets=4)
    tensor([7, 7, 7, 6, 4, 2, 1, 1, 0])
    """
    span = max_distance if buckets is None else buckets
    steps = at.abs()
    if buckets is not None:
        middle = buckets // 2
        share = (steps.clamp(min=middle).double() / middle).log() / log((max_distance - 1) / middle)
        # However the logarithms round, where the share is an integer its ceiling is the same.
        beyond = middle + ((middle - 1) * share - 1e-9).ceil().long()
        steps = steps.where(steps <= middle, beyond)
    return (span - at.sign() * steps).clamp(0, 2 * span - 1)


def row_indices(
    table: OffsetTable, at: Int64[Tensor, "..."]
) -> tuple[Int64[Tensor, "..."], Bool[Tensor, "..."] | None]:
    """The row of `table` for each offset of `at`, and where that row counts (None: everywhere).

    >>> rows, _ = row_indices(OffsetTable(torch.zeros(1, 3, 4), first=-1), torch.arange(-3, 4))
    >>> rows
    tensor([0, 0, 0, 1, 2, 2, 2])
    """
    row, count = at - table.first, table.rows.shape[1]
    inside = (row >= 0) & (row < count) if table.beyond == "zero" else None
    return row.clamp(0, count - 1), inside


def rows_at(table: OffsetTable, first: int, last: int) -> Tensor:
    """The rows that offsets `first..last` select, `(h or 1, last - first + 1[, d])`.

    A view where the table has them all, else a new tensor.

    >>> rows_at(OffsetTable(torch.tensor([[5.0, 6.0]]), first=0, beyond="zero"), -1, 2)
    tensor([[0., 5., 6., 0.]])
    """
    if table.first <= first and last <= table.last:
        return table.rows[:, first - table.first : last + 1 - table.first]
    device = table.rows.device
    index, inside = row_indices(table, torch.arange(first, last + 1, device=device))
    picked = table.rows.index_select(1, index)
    if inside is None:
        return picked
    return picked.where(inside.view(1, -1, *[1] * (picked.ndim - 2)), 0)


def t5_buckets(
    at: Int64[Tensor, "..."],
    buckets: int = 32,
    max_distance: int = 128,
    *,
    bidirectional: bool = True,
) -> Int64[Tensor, "..."]:
    """The bucket of each offset of `at`: one per distance at first, then ever wider ones.

    Raffel et al. 2020, section 2.1. With `n` buckets on a side, distances below `m = n // 2` have
    one each, and a distance `d` further away has number
    `m + floor(log(d / m) / log(max_distance / m) * (n - m))`, at most `n - 1`.

    Args:
        at: offsets, in tokens.
        buckets: of both sides together; at least 4, or 2 where there is one side.
        max_distance: from here on all distances share the last bucket; more than `m`.
        bidirectional: whether keys ahead have the second half of the buckets; else they share
            the bucket of offset 0.

    >>> t5_buckets(torch.tensor([-200, -9, -2, 0, 2, 9]))
    tensor([15,  8,  2,  0, 18, 24])
    """
    side = buckets // 2 if bidirectional else buckets
    exact = side // 2
    distance = at.abs() if bidirectional else (-at).clamp(min=0)
    # In float32 and in this order, as in the paper's code: they decide where a boundary falls.
    steps = (distance.clamp(min=exact).float() / exact).log() / log(max_distance / exact)
    far = (exact + (steps * (side - exact)).long()).clamp(max=side - 1)
    bucket = distance.where(distance < exact, far)
    return bucket + side * (at > 0) if bidirectional else bucket
