"""A picture with what a model reads in it, as a figure."""

from __future__ import annotations

from matplotlib.figure import Figure

from relpos.plots.style import WIDTH, new_figure

from ..models.pixel_classifier import PixelClassifier
from .figures import DIGIT_COLORS, draw_labels
from .picture import Picture
from .reading import Reading, label_pixels, read_digits_in

__all__ = ["read_and_draw"]


def read_and_draw(model: PixelClassifier, picture: Picture) -> tuple[list[Reading], Figure]:
    """The digits of a picture, and the picture with each ink pixel in the colour of its digit.

    Args:
        model: of digits.
        picture: to read.
    """
    labels = label_pixels(model, picture.image, window=model.config.shape)
    found = read_digits_in(labels)
    height, width = picture.image.shape
    # No taller than twice its width, so that a narrow picture stays on a page.
    high = min(2.0, height / width) * WIDTH
    with new_figure(WIDTH, high + 0.4) as (figure, (axes,)):
        draw_labels(axes, picture.image, labels)
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
