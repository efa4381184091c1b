"""Performances as training batches.

Training sequences are random crops of N tokens, each transposed by -3 to 3 semitones and played
slower or faster by up to a twentieth, as Huang et al. 2018 (section 4.2) do. A crop begins with the
performance or at any event; it depends on the seed, the step and its index in the batch alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lightning
import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from ...training.step_batches import StepBatches, device_share
from ..tokens import BEGIN
from ..windows import Windows, crop_at
from .excerpts import excerpts
from .performance import Performance
from .split import PerformanceSplit
from .tokens import events_of, transposed

__all__ = ["SEMITONES", "STRETCHES", "PerformanceCrops", "PerformanceData"]

SEMITONES = 3
STRETCHES = (0.95, 0.975, 1.0, 1.025, 1.05)


class PerformanceCrops(StepBatches):
    """Batches of random crops: inputs and targets `(batch, window)`.

    Args:
        performances: to train on; longer ones are drawn more often.
        window: tokens in a crop, N.
        batch: crops in a batch.
        steps: how many batches there are.
        seed: of the choice.
        share: `(rank, of)`: give only every `of`-th crop of each batch.
    """

    def __init__(
        self,
        performances: Sequence[Performance],
        *,
        window: int,
        batch: int,
        steps: int,
        seed: int,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        super().__init__(batch=batch, steps=steps, seed=seed, share=share)
        self._window = window
        self._events = [events_of(performance) for performance in performances]
        # The token behind each event, as it is played in the file.
        self._token_ends = [np.cumsum(events.lengths) for events in self._events]
        self._semitones = [
            _range_of(int(one.pitches.min()), int(one.pitches.max())) for one in performances
        ]
        sizes = np.array([ends[-1] for ends in self._token_ends], np.float64)
        self._ends = np.cumsum(sizes / sizes.sum())

    def example(
        self, rng: np.random.Generator
    ) -> tuple[Int64[ndarray, "window"], Int64[ndarray, "window"]]:
        """A crop: inputs and targets, `IGNORE` past the end of a performance.

        Args:
            rng: what to draw from.
        """
        window = self._window
        one = min(int(np.searchsorted(self._ends, rng.random())), len(self._ends) - 1)
        events, ends = self._events[one], self._token_ends[one]
        semitones = int(rng.integers(self._semitones[one][0], self._semitones[one][1] + 1))
        stretch = STRETCHES[rng.integers(len(STRETCHES))]
        # A crop may hang over the beginning by a quarter of its length; it is then moved to it.
        start = int(rng.integers(-(window // 4), max(int(ends[-1]) - window, 0) + 1))
        first = int(np.searchsorted(ends, max(start, 0), side="right"))
        # As many events as a crop has tokens are always enough.
        tokens = events.part(first, first + window + 1).with_shifts(stretch=stretch)
        tokens = transposed(tokens, semitones)
        if start <= 0:
            tokens = np.append(np.int64(BEGIN), tokens)
        return crop_at(tokens, window=window)


class PerformanceData(lightning.LightningDataModule):
    """Crops to train on, and the validation performances in windows.

    Args:
        split: the performances.
        window: tokens in a sequence, N.
        batch: sequences per step, over all devices together.
        steps: how many batches there are.
        seed: of the choice.
        valid_tokens: the most tokens to validate on; None: all.
    """

    def __init__(
        self,
        split: PerformanceSplit,
        *,
        window: int,
        batch: int,
        steps: int,
        seed: int,
        valid_tokens: int | None = None,
    ) -> None:
        super().__init__()
        self.split, self.window, self.batch = split, window, batch
        self.steps, self.seed, self.valid_tokens = steps, seed, valid_tokens

    def train_dataloader(self) -> Any:
        """The batches of this device."""
        return PerformanceCrops(
            self.split.train,
            window=self.window,
            batch=self.batch,
            steps=self.steps,
            seed=self.seed,
            share=device_share(self, batch=self.batch),
        )

    def val_dataloader(self) -> Any:
        """The beginnings of validation performances, or all of them."""
        sequences = excerpts(self.split.valid, most=self.valid_tokens, least=4 * self.window)
        return Windows(sequences, window=self.window, batch=2 * self.batch)


def _range_of(lowest: int, highest: int) -> tuple[int, int]:
    """By how many semitones notes may be moved down and up: no pitch may leave 0..127."""
    return -min(SEMITONES, lowest), min(SEMITONES, 127 - highest)
