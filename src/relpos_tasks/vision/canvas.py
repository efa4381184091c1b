"""Canvases: digits pasted on blank paper, and the digit that each ink pixel belongs to.

Digits stand in a part of the canvas, its region, and no two share a pixel. A margin of blank pixels
stays at every edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float32, Int64
from numpy import ndarray

from .digits import Digit

__all__ = [
    "BLANK",
    "INK",
    "MAX_DIGITS",
    "TESTS",
    "TRAINING",
    "Canvas",
    "Layout",
    "canvases",
    "compose",
]

# The label of a pixel that is not scored, which torch's losses leave out by themselves.
BLANK = -100
# From this much ink on a pixel is labelled: a quarter of the darkest.
INK = 0.25
MAX_DIGITS = 3
_MARGIN = 1
# Arrangements tried until all digits fit.
_TRIES = 8
# Of the canvases to watch and to measure on, whatever the seed of the training is.
_SEED = 20180304


@dataclass(frozen=True)
class Layout:
    """How large a canvas is, and in which part of it digits stand.

    Args:
        shape: height and width, in pixels.
        corner: the first row and column of the region.
        region: height and width of the region.

    Raises:
        ValueError: if the region leaves no margin.
    """

    shape: tuple[int, int]
    corner: tuple[int, int]
    region: tuple[int, int]

    def __post_init__(self) -> None:
        for first, extent, size in zip(self.corner, self.region, self.shape, strict=True):
            if first < _MARGIN or first + extent > size - _MARGIN:
                raise ValueError(
                    f"Layout: region must leave a margin of {_MARGIN} on a canvas of "
                    f"{self.shape}, got {self.region} from {self.corner} on"
                )


def _everywhere(height: int, width: int) -> Layout:
    return Layout((height, width), (_MARGIN, _MARGIN), (height - 2 * _MARGIN, width - 2 * _MARGIN))


# The upper left: nine rows, so that digits of eight stand in two ways, and twelve columns.
TRAINING = Layout((16, 16), (1, 1), (9, 12))
# The canvases of `shifted` are those of `same`, moved as far as the margin allows.
TESTS = {
    "same": TRAINING,
    "shifted": Layout((16, 16), (6, 3), (9, 12)),
    "32x32": _everywhere(32, 32),
    "12x40": _everywhere(12, 40),
}


@dataclass(frozen=True, eq=False)
class Canvas:
    """An image with a label for each pixel.

    Args:
        image: ink from 0 to 1.
        labels: the digit of each ink pixel, `BLANK` elsewhere.
    """

    image: Float32[ndarray, "m n"]
    labels: Int64[ndarray, "m n"]


def compose(digits: Sequence[Digit], layout: Layout, rng: np.random.Generator) -> Canvas:
    """As many of the digits as fit, at random places.

    Args:
        digits: the first is always there.
        layout: of the canvas.
        rng: of the places.

    Raises:
        ValueError: if there is no digit, or the region is too small for the first.
    """
    found: list[Canvas] = []
    placed = -1
    for _ in range(_TRIES):
        canvas, count = _try(digits, layout, rng)
        if count > placed:
            found, placed = [canvas], count
        if placed == len(digits):
            break
    if placed < 1:
        raise ValueError(
            f"compose: digits must hold one that fits a region of {layout.region}, "
            f"got {len(digits)} digits of which none does"
        )
    return found[0]


def canvases(digits: Sequence[Digit], layout: Layout, count: int) -> list[Canvas]:
    """Canvases to measure on, of one to three digits each; every image is drawn as often.

    Two layouts whose regions are equally large get the same arrangements.

    Args:
        digits: one part of the split.
        layout: of the canvases.
        count: how many.
    """
    rng = np.random.default_rng(_SEED)
    waiting: list[Digit] = []
    found = []
    for _ in range(count):
        wanted = int(rng.integers(1, MAX_DIGITS + 1))
        while len(waiting) < wanted:
            waiting += [digits[n] for n in rng.permutation(len(digits))]
        # Places have a generator of their own: how many are tried depends on the layout.
        places = np.random.default_rng((_SEED, len(found)))
        found.append(compose(waiting[:wanted], layout, places))
        waiting = waiting[wanted:]
    return found


def _try(digits: Sequence[Digit], layout: Layout, rng: np.random.Generator) -> tuple[Canvas, int]:
    """A canvas, and how many digits found a place on it."""
    image = np.zeros(layout.shape, np.float32)
    labels = np.full(layout.shape, BLANK)
    placed = 0
    for digit in digits:
        place = _free_place(image > 0, digit.image > 0, layout, rng)
        if place is None:
            continue
        image[place] += digit.image
        labels[place][digit.image >= INK] = digit.label
        placed += 1
    return Canvas(image, labels), placed


def _free_place(
    taken: Bool[ndarray, "m n"],
    wanted: Bool[ndarray, "h w"],
    layout: Layout,
    rng: np.random.Generator,
) -> tuple[slice, slice] | None:
    """A place of the region where no wanted pixel is taken; None if there is none."""
    (height, width), (top, left) = wanted.shape, layout.corner
    rows, columns = layout.region[0] - height + 1, layout.region[1] - width + 1
    for place in rng.permutation(max(rows, 0) * max(columns, 0)):
        down, across = divmod(int(place), columns)
        window = (
            slice(top + down, top + down + height),
            slice(left + across, left + across + width),
        )
        if not (taken[window] & wanted).any():
            return window
    return None
