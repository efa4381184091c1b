"""The shear step by step: scores by offset become scores by key without moving a number.

Every cell in the picture is a label, the query and the offset of one score, that went through
`relpos.shear` itself, or through the pad, reshape and slice of Huang et al. (2018, section 3.4.1).
"""

# ruff: noqa: RUF001
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int64
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Polygon, Rectangle
from numpy import ndarray
from torch import Tensor
from torch.nn.functional import pad

from ..checks import check_count
from ..shear import relative_to_absolute, shear_view
from .style import GREY, INK, styled

__all__ = ["LENGTHS", "PADDING", "ShearSteps", "shear_figure", "shear_steps"]

# More would be too small to read, fewer have no score of another query.
LENGTHS = (3, 6)
# Query and offset of a padded cell, which belongs to none.
PADDING = (-1, 0)
# One for each query (Okabe and Ito 2008), light enough for dark letters.
_COLORS = ("#f0b545", "#7cc4ee", "#5cc2a2", "#dc9cc0", "#f2e86b", "#a9a6e0")
_WRONG = "#b3261e"
# Inches.
_WIDTH, _LEFT, _RIGHT = 4.9, 0.72, 0.1


@dataclass(frozen=True)
class ShearSteps:
    """What each step holds: the query and the offset of every score, as pairs.

    Args:
        by_offset: one row per query, one column per offset `-(L-1)..L-1`.
        line: the same in the order of memory.
        starts: where in the line each query's wanted run begins.
        cut: the line from the first start on, in rows of one number less.
        by_key: what `relative_to_absolute` returns: one column per key.
        padded: the columns of offsets `-(L-1)..0` with a column of padding before them.
        reshaped: the same line in rows of L.
        huang: without the first row.
    """

    by_offset: Int64[ndarray, "i w 2"]
    line: Int64[ndarray, "n 2"]
    starts: list[int]
    cut: Int64[ndarray, "i shorter 2"]
    by_key: Int64[ndarray, "i j 2"]
    padded: Int64[ndarray, "i more 2"]
    reshaped: Int64[ndarray, "more i 2"]
    huang: Int64[ndarray, "i j 2"]


def shear_steps(length: int) -> ShearSteps:
    """The labels at each step, for as many queries as keys.

    Args:
        length: L, queries and keys.

    Raises:
        ValueError: if it is below 1.

    >>> shear_steps(2).by_key[..., 1].tolist()
    [[0, 1], [-1, 0]]
    """
    length = check_count("shear_steps", "length", length)
    width = 2 * length - 1
    # One number for each pair; the queries begin at 1, so that 0 is left for the padding.
    at = torch.arange(width, dtype=torch.float64)
    labels = at + width * torch.arange(1, length + 1)[:, None]
    view = shear_view(labels, length)
    first, stride = int(view.storage_offset()), int(view.stride(0))
    line = labels.flatten()
    padded = pad(labels[:, :length], (1, 0))
    reshaped = padded.reshape(length + 1, length)

    def pairs(of: Tensor) -> Int64[ndarray, "*axes 2"]:
        label = of.long()
        query, offset = label // width - 1, label % width - (length - 1)
        return torch.stack((query, offset.where(query >= 0, 0)), dim=-1).numpy()

    return ShearSteps(
        by_offset=pairs(labels),
        line=pairs(line),
        starts=[first + stride * row for row in range(length)],
        cut=pairs(line[first : first + stride * length].unflatten(0, (length, stride))),
        by_key=pairs(relative_to_absolute(labels)),
        padded=pairs(padded),
        reshaped=pairs(reshaped),
        huang=pairs(reshaped[1:]),
    )


def shear_figure(length: int = 4) -> Figure:
    """The shear drawn for a few queries, and the skew of Huang et al. (2018) below it.

    A cell's colour is its query, its number the offset. On the way from offsets to keys no cell
    moves in memory: the rows are cut one cell shorter.

    Args:
        length: queries and keys, 3 to 6.

    Raises:
        ValueError: if it is out of range.

    >>> len(shear_figure(3).axes)
    1
    """
    check_count("shear_figure", "length", length)
    if not LENGTHS[0] <= length <= LENGTHS[1]:
        raise ValueError(
            f"shear_figure: length must be in {LENGTHS[0]}..{LENGTHS[1]} to be readable, "
            f"got {length}"
        )
    steps = shear_steps(length)
    with styled():
        figure = Figure()
        axes = figure.add_axes((0, 0, 1, 1))
        bottom = _Drawing(axes, steps, length).all_steps()
        figure.set_size_inches(_WIDTH, bottom)
        axes.set(xlim=(0, _WIDTH), ylim=(bottom, 0))
        axes.axis("off")
    return figure


class _Drawing:
    """Draws in inches from the upper left corner."""

    def __init__(self, axes: Axes, steps: ShearSteps, length: int) -> None:
        self.axes, self.steps, self.length = axes, steps, length
        self.cell = min(0.56, (_WIDTH - _LEFT - _RIGHT) / (2 * length - 1))

    def all_steps(self) -> float:
        """Draw everything; where the figure ends."""
        y = self.by_offset(0.28)
        y = self.line(y + 0.5)
        y = self.by_key(y + 0.55)
        y = self.pad_and_reshape(y + 0.6)
        return self.above_the_diagonal(y + 0.55) + 0.12

    def by_offset(self, y: float) -> float:
        n, c, cells = self.length, self.cell, self.steps.by_offset
        self.title(y, "1", "Scores by offset: query × table")
        top = y + 0.72
        middle = _LEFT + (n - 0.5) * c
        self.text(_LEFT, y + 0.33, "← looks back", ha="left")
        self.text(middle, y + 0.33, "offset")
        self.text(_LEFT + (2 * n - 1) * c, y + 0.33, "looks ahead →", ha="right")
        for column, (_, offset) in enumerate(cells[0]):
            self.text(
                _LEFT + (column + 0.5) * c, top - 0.13, _signed(int(offset)), color=INK, size=10.0
            )
        wanted = np.zeros(cells.shape[:2], bool)
        for row, start in enumerate(self.steps.starts):
            wanted.flat[start : start + n] = True
            self.query(top + (row + 0.5) * 0.44, row)
        self.grid("offset", cells, (_LEFT, top), (c, 0.44), bright=wanted)
        for row, start in enumerate(self.steps.starts):
            column = start - row * (2 * n - 1)
            self.frame(_LEFT + column * c, top + row * 0.44, n * c, 0.44)
        self.text(
            _LEFT, top + n * 0.44 + 0.17, "framed: offsets at which there is a key", ha="left"
        )
        return top + n * 0.44 + 0.2

    def line(self, y: float) -> float:
        n, cells, starts = self.length, self.steps.line, self.steps.starts
        row, step = 2 * n - 1, starts[1] - starts[0]
        self.title(y, "2", f"In memory: a row every {row}, a frame every {step}")
        c, left, top = (_WIDTH - 2 * _RIGHT) / len(cells), _RIGHT, y + 0.5
        wanted = np.zeros(len(cells), bool)
        for start in starts:
            wanted[start : start + n] = True
        self.grid("line", cells[None], (left, top), (c, 0.34), bright=wanted[None], plain=True)
        for query, start in enumerate(starts):
            x = left + query * row * c
            self.bracket(x, x + row * c, top - 0.06, -0.07, f"{row}")
            self.frame(left + start * c, top, n * c, 0.34)
            if query:
                x = left + starts[query - 1] * c
                self.bracket(x, x + step * c, top + 0.4, 0.07, f"+{step}")
        return top + 0.62

    def by_key(self, y: float) -> float:
        n, c = self.length, self.cell
        cells = self.steps.cut
        self.title(y, "3", f"Cut the line every {cells.shape[1]}: scores by key")
        top = y + 0.72
        self.text(_LEFT + n * c / 2, y + 0.33, "key")
        for key in range(n):
            self.text(_LEFT + (key + 0.5) * c, top - 0.13, str(key), color=INK, size=10.0)
        wanted = np.zeros(cells.shape[:2], bool)
        wanted[:, :n] = True
        self.grid("key", cells, (_LEFT, top), (c, 0.44), bright=wanted)
        for row in range(n):
            self.query(top + (row + 0.5) * 0.44, row)
        self.frame(_LEFT, top, n * c, n * 0.44)
        if n > 2:
            x = _LEFT + (n + (cells.shape[1] - n) / 2) * c
            self.text(x, top - 0.13, "left over")
        self.text(_LEFT, top + n * 0.44 + 0.17, "number = key − query", ha="left")
        return top + n * 0.44 + 0.2

    def pad_and_reshape(self, y: float) -> float:
        n = self.length
        self.title(y, "4", f"Huang's skew: offsets −{n - 1}..0 only")
        c, gap = min(0.31, 3.85 / (3 * n + 1)), 0.3
        x, top = (_WIDTH - (3 * n + 1) * c - 2 * gap) / 2, y + 0.52
        for name, cells, words in (
            ("padded", self.steps.padded, "pad"),
            ("reshaped", self.steps.reshaped, f"reshape {n + 1} × {n}"),
            ("huang", self.steps.huang, "drop row 0"),
        ):
            lines, columns = cells.shape[:2]
            dropped = 1 if name == "reshaped" else 0
            bright = np.ones((lines, columns), bool)
            bright[:dropped] = False
            # The row that is dropped stands above the others, which stay in line.
            above = top + (0 if name == "reshaped" else c)
            self.text(x + columns * c / 2, top - 0.16, words)
            self.grid(name, cells, (x, above), (c, c), bright=bright, plain=True)
            if name != "huang":
                self.text(
                    x + columns * c + gap / 2, top + (n / 2 + 1) * c, "→", size=13.0, color=INK
                )
            x += columns * c + gap
        return top + (n + 1) * c

    def above_the_diagonal(self, y: float) -> float:
        n, cells = self.length, self.steps.huang
        self.title(y, "5", "Above its diagonal: not this query's scores")
        gap = 0.5
        c = min(0.4, (_WIDTH - _LEFT - _RIGHT - gap) / (2 * n))
        top, hidden = y + 0.75, np.triu(np.ones((n, n), bool), 1)
        left = _LEFT
        for name, words in (("masked", "causal mask: unseen"), ("unmasked", "no mask: wrong")):
            self.text(left + n * c / 2, top - 0.36, words, color=INK, size=9.5)
            for key in range(n):
                self.text(left + (key + 0.5) * c, top - 0.12, str(key), size=9.0)
            if name == "masked":
                self.grid(name, cells, (left, top), (c, c), hidden=hidden)
            else:
                self.grid(name, cells, (left, top), (c, c))
                self.stairs(left, top, c)
            left += n * c + gap
        for row in range(n):
            self.query(top + (row + 0.5) * c, row)
        self.text(
            left - gap,
            top + n * c + 0.2,
            "padding and the next query's scores",
            ha="right",
            color=_WRONG,
        )
        return top + n * c + 0.25

    def title(self, y: float, number: str, words: str) -> None:
        self.axes.text(
            _RIGHT, y, number, size=10.0, color="white", weight="bold", ha="left", va="center",
            bbox={"boxstyle": "circle,pad=0.25", "facecolor": INK, "edgecolor": "none"},
        )  # fmt: skip
        self.axes.text(
            _RIGHT + 0.28, y, words, size=11.5, color=INK, weight="bold", ha="left", va="center"
        )

    def text(
        self, x: float, y: float, words: str, *, ha: str = "center", size: float = 9.0,
        color: str = GREY,
    ) -> None:  # fmt: skip
        self.axes.text(x, y, words, ha=ha, va="center", size=size, color=color)

    def query(self, y: float, row: int) -> None:
        self.text(_LEFT - 0.08, y, f"query {row}", ha="right", color=INK, size=10.0)

    def grid(
        self,
        name: str,
        cells: Int64[ndarray, "i j 2"],
        at: tuple[float, float],
        size: tuple[float, float],
        *,
        bright: ndarray | None = None,
        hidden: ndarray | None = None,
        plain: bool = False,
    ) -> None:
        """Cells with their labels; `plain` leaves the query to the colour."""
        (left, top), (width, height) = at, size
        for row, column in np.ndindex(cells.shape[:2]):
            query, offset = (int(number) for number in cells[row, column])
            is_bright = bright is None or bool(bright[row, column])
            is_hidden = hidden is not None and bool(hidden[row, column])
            x, y = left + column * width, top + row * height
            color = "#eef0f3" if is_hidden else "#ffffff" if query < 0 else _COLORS[query]
            is_pad = query < 0 and not is_hidden
            self.axes.add_patch(
                Rectangle(
                    (x, y), width, height, edgecolor="#bbc" if is_pad else "white",
                    facecolor=color if is_bright else _faded(color), linewidth=0.8,
                    zorder=1.5 if is_pad else 1,
                    gid=f"{name}-{row}-{column}",
                )
            )  # fmt: skip
            if is_hidden:
                continue
            points = min(11.0, 72 * 0.5 * width, 72 * 0.4 * height)
            ink = "#112" if is_bright else "#99a"
            words = "pad" if query < 0 else _signed(offset)
            low = 0.12 * height if not plain and query >= 0 else 0.0
            self.axes.text(
                x + width / 2, y + height / 2 + low, words, ha="center", va="center_baseline",
                size=points if query >= 0 else 0.72 * points, color=ink,
                gid=f"{name}-{row}-{column}-offset",
            )  # fmt: skip
            if not plain and query >= 0:
                self.axes.text(
                    x + 0.06 * width, y + 0.08 * height, f"q{query}", ha="left", va="top",
                    size=0.62 * points, color=ink, gid=f"{name}-{row}-{column}-query",
                )  # fmt: skip

    def frame(self, x: float, y: float, width: float, height: float) -> None:
        self.axes.add_patch(
            Rectangle((x, y), width, height, fill=False, edgecolor="#112", linewidth=1.8, zorder=3)
        )

    def stairs(self, left: float, top: float, c: float) -> None:
        """A frame around everything above the diagonal."""
        n = self.length
        corners = [(n, 0), (n, n - 1)]
        for row in range(n - 1, 0, -1):
            corners += [(row, row), (row, row - 1)]
        corners = [(left + column * c, top + row * c) for column, row in corners]
        self.axes.add_patch(
            Polygon(
                corners, closed=True, fill=False, edgecolor=_WRONG, linewidth=2.4, zorder=3,
                gid="wrong",
            )
        )  # fmt: skip

    def bracket(self, x: float, end: float, y: float, height: float, words: str) -> None:
        self.axes.plot([x + 0.02, x + 0.02, end - 0.02, end - 0.02],
                       [y, y + height, y + height, y], color=GREY, linewidth=0.9)  # fmt: skip
        self.text((x + end) / 2, y + height + (0.1 if height > 0 else -0.09), words, size=8.5)


def _signed(number: int) -> str:
    return f"{number:+d}".replace("-", "−") if number else "0"


def _faded(color: str) -> str:
    red, green, blue = (1 - 0.28 * (1 - part) for part in to_rgb(color))
    return to_hex((red, green, blue))
