"""Which keys each query sees by its range: windows, chunks, prefixes, padding."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Integer
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from torch import Tensor

from ..checks import check_count, check_integers, check_shape, one_line
from ..errors import ShapeError
from ..ranges import chunk_ranges, intersect_ranges, padding_ranges, prefix_ranges
from .style import GREY, INK, WIDTH, new_figure

__all__ = ["ranges_figure"]

_LENGTHS = (4, 32)  # a cell is a token: fewer show nothing, more are not told apart
_COLOURS = ListedColormap(["#eef0f4", "#2a788e"])
_COLUMNS = 3


def ranges_figure(
    length: int = 12, ranges: Mapping[str, Integer[Tensor, "#b i 2"]] | None = None
) -> Figure:
    """A square for each query (down) and key (across), filled where the query sees the key.

    Args:
        length: queries and keys, 4 to 32.
        ranges: as `attention(..., key_ranges=...)` takes them, by their titles, of which the first
            batch entry is drawn; None: a window and those that `relpos` makes.

    Raises:
        ShapeError: if some ranges have another shape or dtype.
        TypeError: if some are no tensor.
        ValueError: if `length` is out of range, or there are no ranges.

    >>> [axes.get_title() for axes in ranges_figure(8, {"mine": chunk_ranges(8, 2, 1)}).axes]
    ['mine']
    """
    check_count("ranges_figure", "length", length)
    if not _LENGTHS[0] <= length <= _LENGTHS[1]:
        raise ValueError(
            f"ranges_figure: length must be in {_LENGTHS[0]}..{_LENGTHS[1]} to be readable, "
            f"got {length}"
        )
    ranges = _usual_ranges(length) if ranges is None else ranges
    if not isinstance(ranges, Mapping) or not ranges:
        raise ValueError(
            f"ranges_figure: ranges must be some ranges by their titles, got {one_line(ranges)}"
        )
    for title, one in ranges.items():
        name = f"ranges[{one_line(title)}]"
        check_shape("ranges_figure", name, one, "b i 2", {"i": length})
        check_integers("ranges_figure", name, one)
        if not one.shape[0]:
            raise ShapeError(
                f"ranges_figure: {name} must have a batch entry to draw, got {tuple(one.shape)}"
            )
    columns = min(_COLUMNS, len(ranges))
    lines = -(-len(ranges) // _COLUMNS)
    side = WIDTH / _COLUMNS
    with new_figure(side * columns, (side + 0.35) * lines, lines, columns) as (figure, panels):
        for axes, (title, one) in zip(panels, ranges.items(), strict=False):
            _draw(axes, title, one[0].cpu(), length)
        for axes in panels[len(ranges) :]:
            axes.remove()
    return figure


def _usual_ranges(length: int) -> dict[str, Tensor]:
    """A window, and what the helpers make, each in proportion to the length."""
    at, third, size = torch.arange(length), length // 3, length // 4
    chunks = chunk_ranges(length, size, left_chunks=1)
    padded = padding_ranges(torch.tensor([length - size]), length)
    return {
        f"window=({third}, 0)": torch.stack([(at - third).clamp(min=0), at + 1], -1)[None],
        f"chunk_ranges({length}, {size}, 1)": chunks,
        f"chunk_ranges({length}, {size}, 1, 1)": chunk_ranges(length, size, 1, right_chunks=1),
        f"prefix_ranges({third}, {length})": prefix_ranges(third, length),
        f"padding_ranges(tensor([{length - size}]), {length})": padded,
        "intersect_ranges(chunks, pad)": intersect_ranges(chunks, padded),
    }


def _draw(axes: Axes, title: str, ranges: Tensor, length: int) -> None:
    keys = torch.arange(length)
    seen = (keys >= ranges[:, :1]) & (keys < ranges[:, 1:])
    axes.pcolormesh(seen.numpy(), cmap=_COLOURS, vmin=0, vmax=1, edgecolors="white", linewidth=0.8)
    axes.set(xlim=(0, length), ylim=(length, 0), aspect="equal", xticks=[], yticks=[])
    axes.set_title(title, fontsize=8, color=INK)
    axes.set_xlabel("key", fontsize=8, color=GREY)
    axes.set_ylabel("query", fontsize=8, color=GREY)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
