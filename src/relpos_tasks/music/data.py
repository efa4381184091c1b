"""Chorales as training batches.

Training sequences are random crops of N tokens whose targets begin at a step, so that target n is
always of voice n mod 4; the input is one token behind: the bass of the step before, or the begin
token. Each crop is transposed at random within the training pieces' voice ranges. A crop depends
on the seed, the step and its index in the batch alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lightning
import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from ..training.step_batches import StepBatches, device_share
from .augment import semitones_within, transpose, voice_ranges
from .piece import VOICES, Piece
from .split import Split
from .tokens import Vocabulary
from .windows import Windows, crop_at

__all__ = ["ChoraleData", "Crops"]


class Crops(StepBatches):
    """Batches of random crops: inputs and targets `(batch, window)`.

    Args:
        pieces: the training pieces.
        vocabulary: it must cover them and their transpositions.
        window: tokens in a crop, N.
        batch: crops in a batch.
        steps: how many batches there are.
        seed: of the choice.
        share: `(rank, of)`: give only every `of`-th crop of each batch.
    """

    def __init__(
        self,
        pieces: Sequence[Piece],
        vocabulary: Vocabulary,
        *,
        window: int,
        batch: int,
        steps: int,
        seed: int,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        super().__init__(batch=batch, steps=steps, seed=seed, share=share)
        ranges = voice_ranges(pieces)
        self._transposed = [
            [
                vocabulary.encode(transpose(piece, semitones))
                for semitones in semitones_within(piece, ranges)
                if _fits(piece, semitones, vocabulary)
            ]
            for piece in pieces
        ]
        sizes = np.array([piece.steps for piece in pieces], np.float64)
        self._ends = np.cumsum(sizes / sizes.sum())
        self._window = window

    def example(
        self, rng: np.random.Generator
    ) -> tuple[Int64[ndarray, "window"], Int64[ndarray, "window"]]:
        """A crop: inputs and targets, `IGNORE` past the end of a piece.

        Args:
            rng: what to draw from.
        """
        transposed = self._transposed[
            min(int(np.searchsorted(self._ends, rng.random())), len(self._ends) - 1)
        ]
        tokens = transposed[rng.integers(len(transposed))]
        length = self._window // len(VOICES)
        steps = len(tokens) // len(VOICES)
        # A crop may hang over the beginning by a quarter of its length; it is then moved to it.
        start = max(0, int(rng.integers(-(length // 4), max(steps - length, 0) + 1)))
        return crop_at(tokens[len(VOICES) * start :], window=self._window)


class ChoraleData(lightning.LightningDataModule):
    """Crops to train on, and the validation pieces in windows.

    Args:
        split: the pieces.
        vocabulary: it must cover them.
        window: tokens in a sequence, N.
        batch: sequences per step, over all devices together.
        steps: how many batches there are.
        seed: of the choice.
    """

    def __init__(
        self,
        split: Split,
        vocabulary: Vocabulary,
        *,
        window: int,
        batch: int,
        steps: int,
        seed: int,
    ) -> None:
        super().__init__()
        self.split, self.vocabulary, self.window = split, vocabulary, window
        self.batch, self.steps, self.seed = batch, steps, seed

    def train_dataloader(self) -> Any:
        """The batches of this device."""
        return Crops(
            self.split.train,
            self.vocabulary,
            window=self.window,
            batch=self.batch,
            steps=self.steps,
            seed=self.seed,
            share=device_share(self, batch=self.batch),
        )

    def val_dataloader(self) -> Any:
        """Every token of every validation piece, once."""
        sequences = map(self.vocabulary.encode, self.split.valid)
        return Windows(sequences, window=self.window, batch=2 * self.batch)


def _fits(piece: Piece, semitones: int, vocabulary: Vocabulary) -> bool:
    notes = piece.pitches[piece.pitches >= 0]
    return not notes.size or bool(
        notes.min() + semitones >= vocabulary.lowest
        and notes.max() + semitones <= vocabulary.highest
    )
