"""Groups of ink become digits, line by line."""

import numpy as np
import pytest
import torch
from torch import nn

from relpos_tasks.vision.canvas import BLANK, INK
from relpos_tasks.vision.reading import label_pixels, read_digits_in


def page(*groups, shape=(24, 24)):
    """Labels of ink, for each (digit, (top, left, height, width))."""
    labels = np.full(shape, BLANK)
    for digit, (top, left, height, width) in groups:
        labels[top : top + height, left : left + width] = digit
    return labels


def test_digits_are_read_line_by_line_from_left_to_right():
    labels = page(
        (3, (2, 14, 8, 4)), (1, (3, 2, 8, 4)), (4, (1, 8, 8, 4)),
        (5, (15, 9, 8, 4)), (9, (13, 1, 8, 4)),
    )  # fmt: skip
    assert [one.digit for one in read_digits_in(labels)] == [1, 4, 3, 9, 5]


def test_a_group_is_what_most_of_its_pixels_are():
    labels = page((7, (2, 2, 8, 4)), (2, (2, 2, 3, 4)))
    (one,) = read_digits_in(labels)
    assert (one.digit, one.pixels, one.agreeing) == (7, 32, 20)
    assert (one.rows, one.columns) == ((2, 9), (2, 5))


def test_pixels_that_touch_at_corners_are_one_group_and_specks_are_none():
    labels = page((6, (2, 2, 3, 3)), (6, (5, 5, 3, 3)), (1, (20, 20, 1, 3)))
    (one,) = read_digits_in(labels)
    assert (one.digit, one.pixels) == (6, 18)


def test_blank_paper_reads_as_nothing():
    assert read_digits_in(page()) == []


class Counting(nn.Module):
    """Says of each pixel how many of the image are darkest; keeps the shapes it has read."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def forward(self, images):
        self.shapes.append(tuple(images.shape[1:]))
        count = (images == 1).flatten(1).sum(1)
        return 9.0 * nn.functional.one_hot(count, 10)[:, :, None, None].expand(
            -1, -1, *images.shape[1:]
        )


@pytest.mark.parametrize("corner", [(0, 0), (3, 11), (6, 19)])
def test_a_group_is_read_with_what_is_near_and_not_with_what_is_far(corner):
    image = np.zeros((12, 40), np.float32)
    row, column = corner
    image[row : row + 6, column : column + 3] = 0.5
    image[row + 2, column + 1] = image[row + 4, column + 1] = 1
    # Six columns beside the group's middle, within a window of 16, and far beyond it.
    image[row, column + 7] = image[row, 38] = 1
    model = Counting()
    labels = label_pixels(model, image, window=(16, 16))
    assert ((labels != BLANK) == (image >= INK)).all()
    assert (labels[row : row + 6, column : column + 3] == 3).all()
    assert set(model.shapes) == {(16, 16)}


def test_a_group_larger_than_the_window_is_read_whole():
    image = np.ones((3, 30), np.float32)
    model = Counting()
    with torch.no_grad():
        image[:] = 0.5
        image[0, 0] = image[2, 29] = 1
        labels = label_pixels(model, image, window=(16, 16))
    assert (labels == 2).all()
    assert model.shapes == [(16, 32)]
