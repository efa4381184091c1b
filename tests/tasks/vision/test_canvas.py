"""Canvases: digits inside their region, none upon another, labels of their ink."""

import numpy as np
import pytest

from relpos_tasks.vision.canvas import BLANK, INK, TESTS, TRAINING, Layout, canvases, compose
from relpos_tasks.vision.digits import Digit


def block(height, width, label):
    """A digit that is ink all over, darkest in its middle."""
    image = np.full((height, width), 0.5, np.float32)
    image[height // 2, width // 2] = 1
    return Digit(image, label)


@pytest.mark.parametrize("name", TESTS)
def test_digits_stand_in_their_region_alone(digits, name):
    layout = TESTS[name]
    (top, left), (rows, columns) = layout.corner, layout.region
    for canvas in canvases(digits.valid, layout, 40):
        assert canvas.image.shape == canvas.labels.shape == layout.shape
        outside = np.ones(layout.shape, bool)
        outside[top : top + rows, left : left + columns] = False
        assert not canvas.image[outside].any()
        assert (canvas.labels[outside] == BLANK).all()
        assert canvas.image.any()
        # The margin.
        assert not canvas.image[[0, -1]].any()
        assert not canvas.image[:, [0, -1]].any()


def test_labels_are_those_of_the_ink(digits):
    for canvas in canvases(digits.valid, TRAINING, 40):
        assert ((canvas.labels != BLANK) == (canvas.image >= INK)).all()
        assert canvas.image.max() <= 1


def test_no_two_digits_share_a_pixel():
    rng, layout = np.random.default_rng(0), Layout((14, 14), (1, 1), (12, 12))
    for _ in range(20):
        canvas = compose([block(8, 5, 1), block(8, 6, 2)], layout, rng)
        counts = [(canvas.labels == label).sum() for label in (1, 2)]
        assert counts in ([40, 48], [40, 0])
        assert canvas.image.max() <= 1


def test_as_many_digits_are_pasted_as_fit():
    rng, layout = np.random.default_rng(0), Layout((10, 14), (1, 1), (8, 12))
    seen = {
        len(np.unique(compose([block(8, 4, n) for n in (1, 2, 3)], layout, rng).labels)) - 1
        for _ in range(30)
    }
    assert seen == {2, 3}
    alone = compose([block(8, 9, 1), block(8, 9, 2)], layout, rng)
    assert set(np.unique(alone.labels)) == {1, BLANK}


@pytest.mark.parametrize(("given", "count"), [([], 0), ([block(9, 4, 1)], 1)])
def test_without_a_digit_that_fits_there_is_no_canvas(given, count):
    layout = Layout((10, 14), (1, 1), (8, 12))
    with pytest.raises(ValueError, match=f"of \\(8, 12\\), got {count} digits of which none does"):
        compose(given, layout, np.random.default_rng(0))


def test_shifted_canvases_are_those_of_training_moved(digits):
    same = canvases(digits.held_out, TESTS["same"], 30)
    shifted = canvases(digits.held_out, TESTS["shifted"], 30)
    for one, other in zip(same, shifted, strict=True):
        np.testing.assert_array_equal(np.roll(one.image, (5, 2), (0, 1)), other.image)
        np.testing.assert_array_equal(np.roll(one.labels, (5, 2), (0, 1)), other.labels)


def test_canvases_of_a_test_are_always_the_same_and_begin_alike(digits):
    few, many = (canvases(digits.held_out, TESTS["32x32"], count) for count in (5, 9))
    for one, other in zip(few, many, strict=False):
        np.testing.assert_array_equal(one.image, other.image)


def test_canvases_have_one_to_three_digits_and_use_every_image():
    marked = [block(8, 1, n % 10) for n in range(30)]
    found = canvases(marked, TESTS["12x40"], 60)
    counts = [(canvas.labels != BLANK).sum() // 8 for canvas in found]
    assert set(counts) == {1, 2, 3}
    labels = np.concatenate([canvas.labels[canvas.labels != BLANK] for canvas in found])
    assert np.ptp(np.bincount(labels, minlength=10)) <= 3 * 8


def test_a_region_must_leave_a_margin():
    with pytest.raises(ValueError, match="region must leave a margin of 1 on a canvas of"):
        Layout((16, 16), (1, 1), (15, 12))
    with pytest.raises(ValueError, match=r"got \(9, 12\) from \(0, 1\) on"):
        Layout((16, 16), (0, 1), (9, 12))
