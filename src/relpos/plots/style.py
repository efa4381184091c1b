"""How every figure looks, and how it becomes a file: the same bytes from the same numbers."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import Locator

__all__ = [
    "DIVERGING",
    "GREY",
    "INK",
    "SUFFIXES",
    "WIDTH",
    "image_bytes",
    "integer_axis",
    "new_figure",
    "ramp",
    "styled",
    "subfigures",
    "svg",
]

GREY, INK = "#667", "#334"
# For numbers on both sides of 0; told apart with every kind of colour vision.
DIVERGING = "RdBu_r"
# Inches: narrow enough to be read on a phone.
WIDTH = 6.2
# The kinds of file that a figure can be.
SUFFIXES = (".png", ".svg")
# Without what would tell one day, or one version of matplotlib, from another.
_UNSIGNED: dict[str, Any] = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
}
_STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    # It comes with matplotlib, so that the same letters are everywhere.
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#99a",
    "axes.labelcolor": INK,
    "axes.titlesize": 11,
    "axes.titlecolor": INK,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "axes.grid": True,
    "grid.color": "#e6e8ec",
    "legend.frameon": False,
    # The same figure from the same numbers, to the byte.
    "svg.hashsalt": "relpos",
}


def styled() -> Any:
    """A context in which matplotlib draws as relpos does, whatever the user's own settings are."""
    return mpl.rc_context({**mpl.rcParamsDefault, "backend": mpl.rcParams["backend"], **_STYLE})


@contextmanager
def new_figure(
    width: float, height: float, lines: int = 1, columns: int = 1
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure without pyplot, so that nothing global is touched and no screen is needed.

    Args:
        width: in inches.
        height: in inches.
        lines: of panels.
        columns: of panels; 0 makes none.

    Yields:
        The figure, and its panels line by line.
    """
    with styled():
        figure = Figure(figsize=(width, height), layout="constrained")
        panels = figure.subplots(lines, columns, squeeze=False).flat if columns else []
        yield figure, list(panels)


def subfigures(figure: Figure, heights: Sequence[float]) -> list[SubFigure]:
    """Parts of a figure, one below the other.

    Args:
        figure: with a size, but nothing in it.
        heights: of the parts, in inches.
    """
    parts: Any = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)
    return list(parts.flat)


def image_bytes(figure: Figure, suffix: str) -> bytes:
    """The figure as the content of a file, on white.

    Args:
        figure: any.
        suffix: of the file, `".png"` or `".svg"`.

    Raises:
        ValueError: if the suffix is another.

    >>> image_bytes(Figure(), ".svg")[:5]
    b'<?xml'
    """
    if suffix not in SUFFIXES:
        raise ValueError(
            f"image_bytes: suffix must be {' or '.join(map(repr, SUFFIXES))}, got {suffix!r}"
        )
    file = io.BytesIO()
    with styled():
        figure.savefig(
            file, format=suffix[1:], dpi=200, facecolor="white", metadata=_UNSIGNED[suffix]
        )
    return file.getvalue()


def svg(figure: Figure) -> str:
    """The figure as SVG without a background, for a page.

    Args:
        figure: any.
    """
    file = io.StringIO()
    with styled():
        figure.savefig(file, format="svg", transparent=True, dpi=150, metadata=_UNSIGNED[".svg"])
    return file.getvalue()


def ramp(count: int) -> list[str]:
    """From light (the first layer or head) to dark (the last).

    Args:
        count: how many colours.
    """
    shades = mpl.colormaps["viridis"](np.linspace(0.75, 0.05, count))
    return [to_hex(shade) for shade in shades]


def integer_axis(axis: Any, max_steps: int = 4) -> None:
    """Ticks at multiples of a power of two: bars and beats are such, and so are most lengths.

    Args:
        axis: `axes.xaxis` or `axes.yaxis`.
        max_steps: between the first tick and the last.
    """
    axis.set_major_locator(_PowersOfTwo(max_steps))


class _PowersOfTwo(Locator):
    def __init__(self, max_steps: int) -> None:
        self.max_steps = max_steps

    def __call__(self) -> Any:
        assert self.axis is not None
        return self.tick_values(*self.axis.get_view_interval())

    def tick_values(self, vmin: float, vmax: float) -> Any:
        low, high = sorted((vmin, vmax))
        step = 1
        while high - low > step * self.max_steps:
            step *= 2
        return np.arange(np.ceil(low / step), np.floor(high / step) + 1) * step
