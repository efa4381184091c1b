"""What a model reads in a picture: a digit for each connected group of ink pixels.

Each group is read in a window as large as the canvases of training, with the group in its middle
and whatever is beside it: the size of a whole picture, and how many digits it has, were never
trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy import ndarray
from torch import nn

from .canvas import BLANK, INK
from .evaluate import predict

__all__ = ["Reading", "in_lines", "label_pixels", "read_digits_in"]

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


def label_pixels(
    model: nn.Module, image: Float[ndarray, "m n"], *, window: tuple[int, int]
) -> Int64[ndarray, "m n"]:
    """The likeliest digit of each ink pixel, `BLANK` elsewhere.

    Args:
        model: gives logits `(b, 10, height, width)` for images `(b, height, width)`.
        image: ink from 0 to 1.
        window: height and width of what is read at once around a group; larger groups are read in
            a window of their own size.
    """
    labels = np.full(image.shape, BLANK)
    for rows, columns in _groups(image):
        sizes = [
            max(size, int(np.ptp(at)) + 3) for size, at in zip(window, (rows, columns), strict=True)
        ]
        top, left = (
            (int(at.min()) + int(at.max()) + 1 - size) // 2
            for size, at in zip(sizes, (rows, columns), strict=True)
        )
        seen = torch.from_numpy(_window(image, top, left, sizes))
        found = predict(model, seen[None])[0].argmax(0).numpy()
        labels[rows, columns] = found[rows - top, columns - left]
    return labels


def read_digits_in(labels: Int64[ndarray, "m n"]) -> list[Reading]:
    """The digits of a picture as they are read: line by line, each from left to right.

    Specks of fewer than 4 pixels are left out. Two digits that touch are one group.

    Args:
        labels: the digit of each ink pixel, `BLANK` elsewhere.
    """
    found = []
    for rows, columns in _groups(labels != BLANK):
        counts = np.bincount(labels[rows, columns], minlength=10)
        if counts.sum() >= _FEWEST:
            found.append(
                Reading(
                    digit=int(counts.argmax()),
                    rows=(int(rows.min()), int(rows.max())),
                    columns=(int(columns.min()), int(columns.max())),
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


def _groups(image: ndarray) -> list[tuple[ndarray, ndarray]]:
    """Rows and columns of each group of ink pixels that touch."""
    from scipy.ndimage import label  # noqa: PLC0415

    groups, count = label(image >= INK, structure=np.ones((3, 3)))  # type: ignore[misc]
    return [np.nonzero(groups == number) for number in range(1, count + 1)]  # type: ignore[misc]


def _window(
    image: Float[ndarray, "m n"], top: int, left: int, sizes: Sequence[int]
) -> Float[ndarray, "..."]:
    """A part of the picture, blank beyond its edge."""
    window = np.zeros(sizes, np.float32)
    part = image[max(top, 0) : top + sizes[0], max(left, 0) : left + sizes[1]]
    first, second = max(-top, 0), max(-left, 0)
    window[first : first + part.shape[0], second : second + part.shape[1]] = part
    return window
