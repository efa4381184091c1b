"""Accuracy: the share of ink pixels whose likeliest digit is theirs, over all canvases of a test.

Chance is a tenth. The canvases of a test are the same for every model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Float32, Int64
from numpy import ndarray
from torch import Tensor, nn

from .canvas import BLANK, TESTS, Canvas, canvases
from .digits import Digit

__all__ = ["accuracy", "accuracy_by_test", "batches", "predict"]

_PIXELS_AT_ONCE = 16_384


def accuracy(model: nn.Module, measured: Sequence[Canvas]) -> float:
    """The share of ink pixels that a model labels rightly, in 0..1.

    Args:
        model: gives logits `(b, classes, height, width)` for images `(b, height, width)`.
        measured: canvases of one shape that were not trained on.

    Raises:
        ValueError: if there is no ink pixel, or the model gives no finite numbers.
    """
    right, scored = 0, 0
    for images, labels in batches(measured):
        ink = labels != BLANK
        right += int((predict(model, images).argmax(1) == labels)[ink].sum())
        scored += int(ink.sum())
    if not scored:
        raise ValueError("accuracy: canvases must have ink, got none")
    return right / scored


def accuracy_by_test(model: nn.Module, digits: Sequence[Digit], *, count: int) -> dict[str, float]:
    """The accuracy on each of `TESTS`.

    Args:
        model: as in `accuracy`.
        digits: one part of the split.
        count: canvases of each test.
    """
    return {
        name: accuracy(model, canvases(digits, layout, count)) for name, layout in TESTS.items()
    }


def predict(model: nn.Module, images: Float32[Tensor, "b m n"]) -> Float32[Tensor, "b classes m n"]:
    """The probability of each digit at each pixel, on the CPU.

    Args:
        model: as in `accuracy`.
        images: ink from 0 to 1.

    Raises:
        ValueError: if the model gives no finite numbers.
    """
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    with torch.inference_mode():
        found = model(images.to(device)).float().softmax(dim=1).cpu()
    if not found.isfinite().all():
        raise ValueError("predict: logits of the model must be finite, got NaN or infinity")
    return found


def batches(measured: Sequence[Canvas], size: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """The canvases in their order, so many at once.

    Args:
        measured: canvases of one shape.
        size: how many at once; None takes as many as fit some megabytes.

    Yields:
        Images and labels, each `(b, height, width)`.
    """
    if size is None and measured:
        size = max(1, _PIXELS_AT_ONCE // measured[0].image.size)
    for start in range(0, len(measured), size or 1):
        part = measured[start : start + (size or 1)]
        yield _stacked([one.image for one in part]), _stacked([one.labels for one in part])


def _stacked(
    arrays: Sequence[Float32[ndarray, "m n"] | Int64[ndarray, "m n"]],
) -> Tensor:
    return torch.from_numpy(np.stack(arrays))
