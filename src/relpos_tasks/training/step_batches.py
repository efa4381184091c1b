"""Training batches that are a pure function of the seed and the step."""

from __future__ import annotations

from abc import abstractmethod

import lightning
import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

from .resumable_batches import ResumableBatches

__all__ = ["StepBatches", "device_share"]


class StepBatches(ResumableBatches[tuple[Tensor, ...]]):
    """Batches of random examples, one per step, the same for the same seed.

    What an example is, a task's own class says: `example` draws one. It depends on the seed, the
    step and its index in the batch alone.

    Args:
        batch: examples in a batch.
        steps: how many batches there are.
        seed: of the choice.
        share: `(rank, of)`: give only every `of`-th example of each batch.
    """

    def __init__(
        self, *, batch: int, steps: int, seed: int, share: tuple[int, int] = (0, 1)
    ) -> None:
        super().__init__(steps)
        self._batch, self._seed, self._share = batch, seed, share

    @abstractmethod
    def example(self, rng: np.random.Generator) -> tuple[ndarray, ...]:
        """One example: arrays whose shapes are the same for all.

        Args:
            rng: what to draw from.
        """

    def at(self, step: int) -> tuple[Tensor, ...]:
        """The batch of a step.

        Args:
            step: from 0.

        Returns:
            The arrays of the examples, each stacked in a new first dimension.
        """
        rank, of = self._share
        examples = [
            self.example(np.random.default_rng((self._seed, step, index)))
            for index in range(rank, self._batch, of)
        ]
        return tuple(torch.from_numpy(np.stack(arrays)) for arrays in zip(*examples, strict=True))


def device_share(data: lightning.LightningDataModule, *, batch: int) -> tuple[int, int]:
    """Which examples of each batch are this device's: `(rank, of)`, as `StepBatches` takes it.

    Args:
        data: asks; `(0, 1)` where no trainer uses it.
        batch: examples per step, over all devices together.

    Raises:
        ValueError: if the devices cannot share a batch.
    """
    rank, of = 0, 1
    if data.trainer is not None and (shared := data.trainer.distributed_sampler_kwargs):
        rank, of = shared["rank"], shared["num_replicas"]
    if batch % of:
        raise ValueError(
            f"{type(data).__name__}: batch must be a multiple of the devices ({of}), got {batch}; "
            "choose another --batch or --devices"
        )
    return rank, of
