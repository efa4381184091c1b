"""A picture with what a model reads in it, as a figure."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from torch import nn

from relpos.plots.style import WIDTH, new_figure

from .evaluate import predict
from .figures import DIGIT_COLORS, draw_labels
from .picture import Picture
from .reading import Reading, read_digits_in

__all__ = ["read_and_draw"]


def read_and_draw(model: nn.Module, picture: Picture) -> tuple[list[Reading], Figure]:
    """The digits of a picture, and the picture with each ink pixel in the colour of its digit.

    Args:
        model: gives logits `(b, 10, height, width)` for images `(b, height, width)`.
        picture: to read.
    """
    probabilities = predict(model, torch.from_numpy(picture.image)[None])[0].numpy()
    found = read_digits_in(picture.image, probabilities)
    height, width = picture.image.shape
    # No taller than twice its width, so that a narrow picture stays on a page.
    high = min(2.0, height / width) * WIDTH
    with new_figure(WIDTH, high + 0.4) as (figure, (axes,)):
        draw_labels(axes, picture.image, probabilities.argmax(axis=0))
        for one in found:
            axes.text(
                sum(one.columns) / 2,
                one.rows[0] - 0.6,
                str(one.digit),
                color=DIGIT_COLORS[one.digit],
                fontsize=11,
                fontweight="bold",
                ha="center",
                va="bottom",
            )
        # Room for the numbers above the first line.
        axes.set_ylim(height - 0.5, -2.5)
    return found, figure
