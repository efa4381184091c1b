"""Accuracy over ink pixels, against a count by hand."""

import numpy as np
import pytest
import torch
from torch import nn

from relpos_tasks.vision.canvas import BLANK, INK, TESTS, TRAINING, canvases
from relpos_tasks.vision.evaluate import accuracy, accuracy_by_test, batches, predict


class Always(nn.Module):
    """Says one digit of every pixel."""

    def __init__(self, digit):
        super().__init__()
        self.digit = digit

    def forward(self, images):
        logits = torch.zeros(images.shape[0], 10, *images.shape[1:])
        logits[:, self.digit] = 3
        return logits


class NotANumber(Always):
    def forward(self, images):
        return super().forward(images) * torch.nan


def test_accuracy_is_the_share_of_ink_pixels(digits):
    found = canvases(digits.valid, TRAINING, 30)
    labels = np.concatenate([canvas.labels[canvas.image >= INK] for canvas in found])
    shares = [accuracy(Always(digit), found) for digit in range(10)]
    assert shares == [pytest.approx((labels == digit).mean()) for digit in range(10)]
    assert sum(shares) == pytest.approx(1)


def test_every_test_is_measured(digits):
    measured = accuracy_by_test(Always(1), digits.valid, count=3)
    assert list(measured) == list(TESTS)
    for name, layout in TESTS.items():
        assert measured[name] == accuracy(Always(1), canvases(digits.valid, layout, 3))


def test_batches_hold_every_canvas_in_order(digits):
    found = canvases(digits.valid, TRAINING, 7)
    given = list(batches(found, size=3))
    assert [len(images) for images, _ in given] == [3, 3, 1]
    images = torch.cat([images for images, _ in given])
    labels = torch.cat([labels for _, labels in given])
    for canvas, image, label in zip(found, images, labels, strict=True):
        np.testing.assert_array_equal(canvas.image, image)
        np.testing.assert_array_equal(canvas.labels, label)
    assert sum(len(images) for images, _ in batches(found)) == 7


def test_probabilities_sum_to_one():
    found = predict(Always(4), torch.zeros(1, 5, 6))
    assert found.shape == (1, 10, 5, 6)
    torch.testing.assert_close(found.sum(1), torch.ones(1, 5, 6))


def test_what_cannot_be_measured_is_refused(digits):
    found = canvases(digits.valid, TRAINING, 1)
    with pytest.raises(ValueError, match="logits of the model must be finite"):
        accuracy(NotANumber(0), found)
    with pytest.raises(ValueError, match="canvases must have ink, got none"):
        accuracy(Always(0), [])
    assert (found[0].labels != BLANK).any()
