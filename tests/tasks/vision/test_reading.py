"""Groups of ink become digits, line by line."""

import numpy as np

from relpos_tasks.vision.reading import read_digits_in


def page(*groups, shape=(24, 24)):
    """Ink, and probabilities that are sure of a digit for each (top, left, height, width)."""
    image, labels = np.zeros(shape, np.float32), np.zeros(shape, np.int64)
    for digit, (top, left, height, width) in groups:
        image[top : top + height, left : left + width] = 1
        labels[top : top + height, left : left + width] = digit
    return image, np.eye(10)[labels].transpose(2, 0, 1)


def test_digits_are_read_line_by_line_from_left_to_right():
    image, probabilities = page(
        (3, (2, 14, 8, 4)), (1, (3, 2, 8, 4)), (4, (1, 8, 8, 4)),
        (5, (15, 9, 8, 4)), (9, (13, 1, 8, 4)),
    )  # fmt: skip
    assert [one.digit for one in read_digits_in(image, probabilities)] == [1, 4, 3, 9, 5]


def test_a_group_is_what_most_of_its_pixels_are():
    image, probabilities = page((7, (2, 2, 8, 4)), (2, (2, 2, 3, 4)))
    (one,) = read_digits_in(image, probabilities)
    assert (one.digit, one.pixels, one.agreeing) == (7, 32, 20)
    assert (one.rows, one.columns) == ((2, 9), (2, 5))


def test_pixels_that_touch_at_corners_are_one_group_and_specks_are_none():
    image, probabilities = page((6, (2, 2, 3, 3)), (6, (5, 5, 3, 3)), (1, (20, 20, 1, 3)))
    (one,) = read_digits_in(image, probabilities)
    assert (one.digit, one.pixels) == (6, 18)


def test_blank_paper_reads_as_nothing():
    assert read_digits_in(*page()) == []
