"""Canvases as training batches.

A training canvas has one to three digits, each image drawn at random, of which as many are pasted
as fit. It depends on the seed, the step and its index in the batch alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import lightning
import numpy as np
from jaxtyping import Float32, Int64
from numpy import ndarray
from torch import Tensor

from ..training.step_batches import StepBatches, device_share
from .canvas import MAX_DIGITS, TRAINING, Canvas, canvases, compose
from .digits import Digit, DigitSplit
from .evaluate import batches

__all__ = ["CanvasBatches", "CanvasData"]


class CanvasBatches(StepBatches):
    """Batches of training canvases: images and labels `(batch, height, width)`.

    Args:
        digits: the training images.
        batch: canvases in a batch.
        steps: how many batches there are.
        seed: of images and places.
        share: `(rank, of)`: give only every `of`-th canvas of each batch.
    """

    def __init__(
        self,
        digits: Sequence[Digit],
        *,
        batch: int,
        steps: int,
        seed: int,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        super().__init__(batch=batch, steps=steps, seed=seed, share=share)
        self._digits = digits

    def example(
        self, rng: np.random.Generator
    ) -> tuple[Float32[ndarray, "m n"], Int64[ndarray, "m n"]]:
        """A canvas: its image and its labels.

        Args:
            rng: what to draw from.
        """
        count = rng.integers(1, MAX_DIGITS + 1)
        chosen = [self._digits[n] for n in rng.integers(len(self._digits), size=count)]
        canvas = compose(chosen, TRAINING, rng)
        return canvas.image, canvas.labels


class CanvasData(lightning.LightningDataModule):
    """Canvases to train on, and some of the validation images to watch.

    Args:
        split: the digits.
        batch: canvases per step, over all devices together.
        steps: how many batches there are.
        seed: of the choice.
        watched: how many canvases are watched.
    """

    def __init__(
        self, split: DigitSplit, *, batch: int, steps: int, seed: int, watched: int
    ) -> None:
        super().__init__()
        self.split, self.batch, self.steps, self.seed = split, batch, steps, seed
        self.watched = watched

    def train_dataloader(self) -> Any:
        """The batches of this device."""
        return CanvasBatches(
            self.split.train,
            batch=self.batch,
            steps=self.steps,
            seed=self.seed,
            share=device_share(self, batch=self.batch),
        )

    def val_dataloader(self) -> Any:
        """Canvases of the validation images, at the places of training."""
        return _Batches(canvases(self.split.valid, TRAINING, self.watched))


class _Batches:
    """An iterable with a length; a list would be many loaders to Lightning."""

    def __init__(self, watched: Sequence[Canvas]) -> None:
        self._batches = list(batches(watched))

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(self._batches)
