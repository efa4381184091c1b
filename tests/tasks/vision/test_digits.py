"""The digits of scikit-learn: their parts share no image and stay as they are."""

import numpy as np


def test_the_split_is_by_the_order_of_the_collection(digits):
    assert str(digits) == "1,200 to train, 200 to watch, 397 held out"
    assert [digit.label for digit in digits.train[:10]] == list(range(10))


def test_images_are_trimmed_at_their_sides_alone(digits):
    for digit in (*digits.train, *digits.valid, *digits.held_out):
        height, width = digit.image.shape
        assert height == 8
        assert 1 <= width <= 8
        assert digit.image[:, 0].any()
        assert digit.image[:, -1].any()
        assert 0 <= digit.image.min() <= digit.image.max() <= 1
        assert digit.image.dtype == np.float32
        assert 0 <= digit.label <= 9


def test_no_image_is_in_two_parts(digits):
    parts = [
        {digit.image.tobytes() for digit in part}
        for part in (digits.train, digits.valid, digits.held_out)
    ]
    assert not parts[0] & parts[1]
    assert not parts[0] & parts[2]
    assert not parts[1] & parts[2]


def test_the_digest_names_these_images(digits):
    assert digits.about()["digest"] == "12e0c3a13e1dcc4c"
    changed = type(digits)(digits.train[1:], digits.valid, digits.held_out)
    assert changed.digest != digits.digest
