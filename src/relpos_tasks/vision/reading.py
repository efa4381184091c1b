"""What a model reads in a picture: a digit for each connected group of ink pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from .canvas import INK

__all__ = ["Reading", "in_lines", "read_digits_in"]

# Pixels of a group that is a digit; fewer are a speck.
_FEWEST = 4


@dataclass(frozen=True)
class Reading:
    """A group of ink pixels that touch, if only at corners, and the digit that most of them are.

    Args:
        digit: 0..9.
        rows: the first and the last row of the group.
        columns: the first and the last column.
        pixels: how many ink pixels it has.
        agreeing: how many of them are said to be of this digit.
    """

    digit: int
    rows: tuple[int, int]
    columns: tuple[int, int]
    pixels: int
    agreeing: int


def read_digits_in(
    image: Float[ndarray, "m n"], probabilities: Float[ndarray, "10 m n"]
) -> list[Reading]:
    """The digits of a picture as they are read: line by line, each from left to right.

    Specks of fewer than 4 pixels are left out. Two digits that touch are one group.

    Args:
        image: ink from 0 to 1.
        probabilities: of each digit at each pixel.
    """
    from scipy.ndimage import label  # noqa: PLC0415

    labels = probabilities.argmax(axis=0)
    groups, count = label(image >= INK, structure=np.ones((3, 3)))  # type: ignore[misc]
    found = []
    for number in range(1, count + 1):
        inside = groups == number
        counts = np.bincount(labels[inside], minlength=10)
        rows, columns = (np.flatnonzero(inside.any(axis=axis)) for axis in (1, 0))
        if counts.sum() >= _FEWEST:
            found.append(
                Reading(
                    digit=int(counts.argmax()),
                    rows=(int(rows[0]), int(rows[-1])),
                    columns=(int(columns[0]), int(columns[-1])),
                    pixels=int(counts.sum()),
                    agreeing=int(counts.max()),
                )
            )
    return [one for line in in_lines(found) for one in line]


def in_lines(found: Sequence[Reading]) -> list[list[Reading]]:
    """Groups of ink in lines from top to bottom, each from left to right.

    A group belongs to the line above if its middle is not below the lowest pixel of the first group
    there.

    Args:
        found: in any order.
    """
    lines: list[list[Reading]] = []
    for one in sorted(found, key=lambda one: one.rows):
        if lines and sum(one.rows) / 2 <= lines[-1][0].rows[1]:
            lines[-1].append(one)
        else:
            lines.append([one])
    return [sorted(line, key=lambda one: one.columns) for line in lines]
