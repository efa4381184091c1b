"""What layers see: windows of a row of tokens or of a grid's axes, and neighbourhoods there."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..checks import check_count, one_line
from ..ops.locality import AnyWindow, Window, has_no_limits, is_of_axes, resolve_window
from ..ranges import neighborhood_ranges
from ..terms import GridTerms, Terms

__all__ = ["check_neighborhood", "check_window", "check_window_of_axes", "neighborhoods"]


def check_window(name: str, window: AnyWindow) -> AnyWindow:
    """The row's window, or one for each axis of a grid; None without any limit.

    Args:
        name: of the layer.
        window: as it was given.

    Raises:
        ValueError: if it is neither.
    """
    if has_no_limits(window) or is_of_axes(window):
        return check_window_of_axes(name, window)
    (found,) = resolve_window(name, window, Terms()) or (None,)
    return found


def check_window_of_axes(name: str, window: AnyWindow) -> tuple[Window, ...] | None:
    """A window for each axis, of which a call is to have as many; None without any limit.

    Args:
        name: of the layer.
        window: as it was given.

    Raises:
        ValueError: if it has none for each axis.
    """
    if window is None or has_no_limits(window):
        return None
    if not is_of_axes(window):
        raise ValueError(
            f"{name}: window must have one (left, right) or None for each axis of the map, "
            f"got {one_line(window)}"
        )
    return resolve_window(name, window, GridTerms((1,) * len(window))) or None


def check_neighborhood(
    name: str, sizes: int | Sequence[int | None] | None
) -> int | tuple[int | None, ...] | None:
    """How many tokens are seen along each axis, or along all of them; None without any limit.

    Args:
        name: of the layer.
        sizes: as they were given.

    Raises:
        ValueError: if a size is no positive integer, or there is none.
    """
    if sizes is None or has_no_limits(sizes):
        return None
    if not isinstance(sizes, Sequence):
        return check_count(name, "neighborhood", sizes)
    if not sizes or isinstance(sizes, str):
        raise ValueError(
            f"{name}: neighborhood must have a size or None for each axis of the map, "
            f"got {one_line(sizes)}"
        )
    return tuple(
        None if size is None else check_count(name, f"neighborhood[{axis}]", size)
        for axis, size in enumerate(sizes)
    )


def neighborhoods(
    name: str,
    sizes: int | tuple[int | None, ...] | None,
    grid: tuple[int, ...],
    *,
    device: torch.device,
) -> list[Tensor | None] | None:
    """Their ranges of keys along each axis of a map; None where all see all.

    Args:
        name: of the layer.
        sizes: of `check_neighborhood`.
        grid: of the map.
        device: of the ranges.

    Raises:
        ValueError: if the map has another number of axes.
    """
    if sizes is None:
        return None
    of_axes = (sizes,) * len(grid) if isinstance(sizes, int) else sizes
    if len(of_axes) != len(grid):
        raise ValueError(
            f"{name}: neighborhood must have a size or None for each axis of the grid {grid}, "
            f"got {sizes}"
        )
    return [
        None if size is None else neighborhood_ranges(length, size, device=device)
        for size, length in zip(of_axes, grid, strict=True)
    ]
