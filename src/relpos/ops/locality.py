"""Local attention: which keys a query sees by a window of offsets, or by a range of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

from torch import Tensor

from ..checks import check_count, check_device, check_shape, one_line
from ..terms import GridTerms, Terms

__all__ = [
    "AnyWindow",
    "Window",
    "check_key_ranges",
    "has_no_limits",
    "is_of_axes",
    "outside_ranges",
    "outside_window",
    "resolve_window",
]

# Offsets `-left..right`, in tokens; None: no limit on that side.
Window = tuple[int | None, int | None]
# What users give: that of a line of tokens, or one (or None) for each axis of a grid.
AnyWindow = Window | Sequence[Window | None] | None


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
                f"{function}: window must be one (left, right) for a line of tokens, whose terms "
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


def check_key_ranges(function: str, key_ranges: Tensor, q: Tensor) -> Tensor:
    """`key_ranges` in int64, if it has a range for each query.

    Args:
        function: the public function on whose behalf it is checked.
        key_ranges: `(b or 1, i, 2)`, integers (`check_kinds`).
        q: `(b, h, i, d)`.

    Raises:
        ShapeError: if its shape or device does not fit `q`.
    """
    sizes = {"b": (1, q.shape[0]), "i": q.shape[2]}
    check_shape(function, "key_ranges", key_ranges, "b i 2", sizes)
    check_device(function, "key_ranges", key_ranges, q, "q is")
    return key_ranges.long()


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
