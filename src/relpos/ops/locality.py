"""Local attention: which keys a query sees by a window of offsets, or by a range of its own.

On a grid either may be along each axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..checks import check_count, check_device, check_integers, check_shape, one_line
from ..terms import GridTerms, Terms

__all__ = [
    "AnyKeyRanges",
    "AnyWindow",
    "Window",
    "has_no_limits",
    "is_of_axes",
    "outside_axis_ranges",
    "outside_ranges",
    "outside_window",
    "resolve_key_ranges",
    "resolve_window",
]

# Offsets `-left..right`, in tokens; None: no limit on that side.
Window = tuple[int | None, int | None]
# What users give: that of a line of tokens, or one (or None) for each axis of a grid.
AnyWindow = Window | Sequence[Window | None] | None
# What users give: `(b or 1, i, 2)`, or for each axis of a grid `(b or 1, n, 2)`, or None.
AnyKeyRanges = Tensor | Sequence[Tensor | None] | None


def resolve_window(
    function: str, window: AnyWindow, terms: Terms | GridTerms
) -> tuple[Window, ...]:
    """One `(left, right)` for each axis, a line of tokens having one; empty without any limit.

    Args:
        function: the public function on whose behalf it is checked.
        window: of `terms`; for a grid one for each of its axes.
        terms: of the call.

    Raises:
        ValueError: if `window` is no such thing, or queries and keys have grids of their own.
    """
    if window is None:
        return ()
    if isinstance(terms, Terms):
        if is_of_axes(window):
            raise ValueError(
                f"{function}: window must be one (left, right) for a sequence, whose terms "
                f"are no GridTerms, got {one_line(window)}"
            )
        found = [_check_sides(function, "window", window)]
    else:
        axes = len(terms.shape)
        of_axes = is_of_axes(window) or has_no_limits(window)
        if not of_axes or len(window) != axes:
            raise ValueError(
                f"{function}: window must have one (left, right) or None for each axis of the "
                f"grid {terms.shape}, got {one_line(window)}"
            )
        if terms.query_grid != terms.shape:
            raise ValueError(
                f"{function}: window must be left out where queries {terms.query_grid} and keys "
                f"{terms.shape} have grids of their own, got {one_line(window)}"
            )
        found = [
            (None, None) if side is None else _check_sides(function, f"window[{axis}]", side)
            for axis, side in enumerate(window)
        ]
    return tuple(found) if any(side != (None, None) for side in found) else ()


def is_of_axes(window: object) -> TypeGuard[Sequence[Window | None]]:
    """Whether it has windows for axes of a grid, instead of two sides in tokens.

    >>> is_of_axes(((3, 3), None)), is_of_axes((3, None)), is_of_axes((None, None))
    (True, False, False)
    """
    return isinstance(window, Sequence) and any(isinstance(side, Sequence) for side in window)


def has_no_limits(window: object) -> TypeGuard[Sequence[None]]:
    """Whether it is None for each side, or for each axis of a grid."""
    return isinstance(window, Sequence) and len(window) > 0 and all(x is None for x in window)


def _check_sides(function: str, argument: str, sides: object) -> Window:
    if not isinstance(sides, tuple | list) or len(sides) != 2:
        raise ValueError(
            f"{function}: {argument} must be (left, right) in tokens, None for no limit, "
            f"got {one_line(sides)}"
        )
    left, right = (
        _check_side(function, f"{argument}[{number}]", side) for number, side in enumerate(sides)
    )
    return left, right


def _check_side(function: str, argument: str, side: object) -> int | None:
    if isinstance(side, int) and side < 0:  # as flash-attention writes it
        raise ValueError(
            f"{function}: {argument} must be an integer >= 0, or None for no limit, "
            f"got {one_line(side)}"
        )
    return None if side is None else check_count(function, argument, side, least=0)


def resolve_key_ranges(
    function: str, key_ranges: AnyKeyRanges, q: Tensor, terms: Terms | GridTerms
) -> tuple[Tensor | None, Tensor | None]:
    """The `key_ranges` and `axis_ranges` of `Inputs`, at most one of them not None.

    Args:
        function: the public function on whose behalf it is checked.
        key_ranges: of the call.
        q: `(b, h, i, d)`.
        terms: of the call.

    Raises:
        ShapeError: if they are no integers, or their shape or device does not fit `q`.
        ValueError: if there is not one entry for each axis.
        TypeError: if one is no tensor.
    """
    if key_ranges is None:
        return None, None
    has_entries = isinstance(key_ranges, Sequence) and not isinstance(key_ranges, str)
    if isinstance(terms, Terms) and has_entries:
        raise TypeError(
            f"{function}: key_ranges must be a tensor for a sequence, whose terms are no "
            f"GridTerms, got {type(key_ranges).__name__}"
        )
    if isinstance(terms, Terms) or not has_entries:
        ranges: Any = key_ranges  # or what is no tensor
        return _checked_ranges(function, "key_ranges", ranges, q, "i", q.shape[2]), None
    grid, query_grid = terms.shape, terms.query_grid
    if len(key_ranges) != len(grid):
        raise ValueError(
            f"{function}: key_ranges must be one tensor, or have one (or None) for each axis of "
            f"the grid {grid}, got {len(key_ranges)}"
        )
    if has_no_limits(key_ranges):
        return None, None
    found = []
    for axis, (ranges, size, queries) in enumerate(zip(key_ranges, grid, query_grid, strict=True)):
        if ranges is None:
            begin = q.new_zeros(1, queries, dtype=torch.int64)
            found.append(torch.stack([begin, begin + size], -1))
        else:
            name = f"key_ranges[{axis}]"
            found.append(_checked_ranges(function, name, ranges, q, "n", queries))
    batch = 1 if all(ranges.shape[0] == 1 for ranges in found) else q.shape[0]
    return None, torch.cat([ranges.expand(batch, -1, -1) for ranges in found], 1)


def _checked_ranges(
    function: str, argument: str, ranges: Tensor, q: Tensor, axis: str, tokens: int
) -> Tensor:
    """`ranges (b or 1, tokens, 2)` in int64."""
    check_integers(function, argument, ranges)
    sizes = {"b": (1, q.shape[0]), axis: tokens}
    check_shape(function, argument, ranges, f"b {axis} 2", sizes)
    check_device(function, argument, ranges, q, "q is")
    return ranges.long()


def outside_window(offset: Tensor, window: Window) -> Tensor | None:
    """True where an offset is beyond a window; None if it has no limit.

    >>> import torch
    >>> outside_window(torch.arange(-3, 3), (2, None))
    tensor([ True, False, False, False, False, False])
    """
    left, right = window
    outside = None if left is None else offset < -left
    if right is None:
        return outside
    return offset > right if outside is None else outside | (offset > right)


def outside_ranges(key_ranges: Tensor, keys: Tensor) -> Tensor:
    """`(b or 1, 1, i, n)`: True where a key is not of a query's range.

    Args:
        key_ranges: `(b or 1, i, 2)`.
        keys: `(n,)`, numbers of keys.

    >>> import torch
    >>> outside_ranges(torch.tensor([[[1, 3], [2, 2]]]), torch.arange(4))
    tensor([[[[ True, False, False,  True],
              [ True,  True,  True,  True]]]])
    """
    first, end = key_ranges[:, None, :, None].unbind(-1)
    return (keys < first) | (keys >= end)


def outside_axis_ranges(
    axis_ranges: Tensor, query_grid: tuple[int, ...], key_grid: tuple[int, ...], prefix: int
) -> Tensor:
    """`(b or 1, 1, i, j)`: True where a key of the grid is outside a query's range along an axis.

    Args:
        axis_ranges: `(b or 1, s, 2)`, as `Inputs` has them.
        query_grid: of the queries.
        key_grid: of the keys.
        prefix: tokens before both grids, which see all and are seen by all.

    >>> import torch
    >>> ranges = torch.tensor([[[0, 1], [0, 2], [1, 2]]])  # of one row, and of two columns
    >>> outside_axis_ranges(ranges, (1, 2), (1, 2), prefix=0)
    tensor([[[[False, False],
              [ True, False]]]])
    """
    axes = len(key_grid)
    hidden = torch.zeros((), dtype=torch.bool, device=axis_ranges.device)
    for axis, ranges in enumerate(axis_ranges.split(query_grid, 1)):
        outside = outside_ranges(ranges, torch.arange(key_grid[axis], device=ranges.device))
        sizes = [1] * (2 * axes)  # of the queries' axes and the keys'
        sizes[axis], sizes[axes + axis] = outside.shape[2:]
        hidden = hidden | outside.reshape(outside.shape[0], *sizes)
    return pad(hidden.flatten(1, axes).flatten(2).unsqueeze(1), (prefix, 0, prefix, 0))
