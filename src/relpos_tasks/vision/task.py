"""Training of pixel classifiers: the loss of the digit of each ink pixel."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from ..training.language_model import IGNORE
from ..training.task import Task

__all__ = ["PixelTask"]


class PixelTask(Task):
    """Classification of pixels.

    Batches are `(images, labels)`, each `(b, height, width)`; labels that are `IGNORE` do not
    count. The model gives logits `(b, classes, height, width)`.
    """

    loss_unit = "nats/pixel"
    units = "pixels"

    def loss(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Nats of all ink pixels, and how many they are."""
        images, labels = batch
        logits = self.model(images)
        nats = functional.cross_entropy(logits, labels, ignore_index=IGNORE, reduction="sum")
        return nats, (labels != IGNORE).sum()

    def count_units(self, batch: tuple[Tensor, Tensor]) -> int:
        """The pixels of a batch, blank ones included."""
        return batch[0].numel()
