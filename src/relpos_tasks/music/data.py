"""Chorales as training batches.

Training sequences are random crops of N tokens whose targets begin at a step, so that target n is
always of voice n mod 4; the input is one token behind: the bass of the step before, or the begin
token. Each crop is transposed at random within the training pieces' voice ranges. A crop depends
on the seed, the step and its index in the batch alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import lightning
import numpy as np
import torch
from jaxtyping import Int64
from numpy import ndarray
from torch import Tensor

from ..training.language_model import IGNORE
from .augment import semitones_within, transpose, voice_ranges
from .evaluate import windows
from .piece import VOICES, Piece
from .split import Split
from .tokens import BEGIN, Vocabulary

__all__ = ["ChoraleData", "Crops"]

Batch = tuple[Tensor, Tensor]


class Crops:
    """Batches of random crops, one per step, the same for the same seed; resumable.

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
        self._window, self._batch, self._steps, self._seed = window, batch, steps, seed
        self._share = share
        self._next = 0

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[Batch]:
        while self._next < self._steps:
            step = self._next
            # Counted before the batch is given away: a checkpoint with it resumes at the next.
            self._next += 1
            yield self.at(step)
        self._next = 0

    def state_dict(self) -> dict[str, int]:
        """The next step, for Lightning's checkpoints."""
        return {"next": self._next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on at a step."""
        self._next = state["next"]

    def at(self, step: int) -> Batch:
        """The batch of a step.

        Args:
            step: from 0.

        Returns:
            Inputs and targets `(batch, window)`; targets past the end of a piece are `IGNORE`.
        """
        rank, of = self._share
        crops = [self._crop(step, index) for index in range(rank, self._batch, of)]
        inputs, targets = zip(*crops, strict=True)
        return torch.from_numpy(np.stack(inputs)), torch.from_numpy(np.stack(targets))

    def _crop(
        self, step: int, index: int
    ) -> tuple[Int64[ndarray, "window"], Int64[ndarray, "window"]]:
        rng = np.random.default_rng((self._seed, step, index))
        transposed = self._transposed[
            min(int(np.searchsorted(self._ends, rng.random())), len(self._ends) - 1)
        ]
        tokens = transposed[rng.integers(len(transposed))]
        length = self._window // len(VOICES)
        steps = len(tokens) // len(VOICES)
        # A crop may hang over the beginning by a quarter of its length; it is then moved to it.
        start = max(0, int(rng.integers(-(length // 4), max(steps - length, 0) + 1)))
        found = tokens[len(VOICES) * start :][: self._window + 1]
        inputs, targets = np.full(self._window, BEGIN), np.full(self._window, IGNORE)
        inputs[: len(found) - 1], targets[: len(found) - 1] = found[:-1], found[1:]
        return inputs, targets


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
        rank, of = 0, 1
        if self.trainer is not None:
            rank, of = self.trainer.global_rank, self.trainer.world_size
        if self.batch % of:
            raise ValueError(
                f"ChoraleData: batch must be a multiple of the devices ({of}), got {self.batch}; "
                "choose another --batch or --devices"
            )
        return Crops(
            self.split.train,
            self.vocabulary,
            window=self.window,
            batch=self.batch,
            steps=self.steps,
            seed=self.seed,
            share=(rank, of),
        )

    def val_dataloader(self) -> Any:
        """Every token of every validation piece, once."""
        return _Windows(self.split.valid, self.vocabulary, self.window, 2 * self.batch)


class _Windows:
    """An iterable with a length; a list would be many loaders to Lightning."""

    def __init__(
        self, pieces: Sequence[Piece], vocabulary: Vocabulary, window: int, batch: int
    ) -> None:
        self._batches = list(windows(pieces, vocabulary, window=window, batch=batch))

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._batches)


def _fits(piece: Piece, semitones: int, vocabulary: Vocabulary) -> bool:
    notes = piece.pitches[piece.pitches >= 0]
    return not notes.size or bool(
        notes.min() + semitones >= vocabulary.lowest
        and notes.max() + semitones <= vocabulary.highest
    )
