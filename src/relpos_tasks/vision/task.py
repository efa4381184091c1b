"""Training of pixel classifiers: the loss of the digit of each ink pixel."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from ..training.task import Task
from .canvas import BLANK

__all__ = ["PixelTask"]


class PixelTask(Task):
    """Classification of pixels.

    Batches are `(images, labels)`, each `(b, height, width)`; labels that are `BLANK` do not
    count. The model gives logits `(b, classes, height, width)`.
    """

    loss_unit = "nats/pixel"
    units = "pixels"

    def loss(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Nats of all ink pixels, and how many they are."""
        images, labels = batch
        logits = self.model(images)
        nats = functional.cross_entropy(logits, labels, ignore_index=BLANK, reduction="sum")
        return nats, (labels != BLANK).sum()

    def count_units(self, batch: tuple[Tensor, Tensor]) -> int:
        """The pixels of a batch, blank ones included."""
        return batch[0].numel()
