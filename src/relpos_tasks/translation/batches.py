"""Pairs of token sequences as batches of so many tokens.

A batch holds as many pairs as fit: the number of its pairs times its longest sequence, padding
included, is at most `tokens` for sources and for targets. Pairs of like length come together. In
each epoch pairs change places with others of the same two lengths, and batches come in another
order, so that the number of batches in an epoch stays the same. A batch depends on the seed and the
step alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import lightning
import numpy as np
import torch
from jaxtyping import Int64
from numpy import ndarray

from ..models.padding import padded
from ..training.language_model import IGNORE
from ..training.resumable_batches import ResumableBatches
from ..training.sequence_to_sequence import Batch
from .pairs import Pair
from .subwords import BEGIN, END, PADDING, Subwords

__all__ = [
    "Batch",
    "EncodedPairs",
    "OrderedBatches",
    "ShuffledBatches",
    "TranslationData",
    "encode_pairs",
    "fitting_runs",
]


@dataclass(frozen=True, eq=False)
class EncodedPairs:
    """Pairs of token sequences.

    Args:
        sources: each with its end token.
        targets: each with its begin and its end token.
        left_out: how many pairs were too long.
    """

    sources: Sequence[Sequence[int]]
    targets: Sequence[Sequence[int]]
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def lengths(self) -> Int64[ndarray, "pairs 2"]:
        """Of what the model reads: the source, and the target without its last token."""
        sizes = [[len(source) for source in self.sources], [len(it) - 1 for it in self.targets]]
        return np.array(sizes, np.int64).T

    def batch(self, chosen: Int64[ndarray, "b"]) -> Batch:
        """Some of the pairs, padded.

        Args:
            chosen: their numbers.

        Returns:
            Source `(b, j)`, and the target without its last and without its first token, `(b, i)`;
            padding is `PADDING`, and `IGNORE` in the last.
        """
        targets = [self.targets[n] for n in chosen]
        return (
            padded([self.sources[n] for n in chosen], PADDING),
            padded([target[:-1] for target in targets], PADDING),
            padded([target[1:] for target in targets], IGNORE),
        )


def encode_pairs(
    pairs: Sequence[Pair], subwords: Subwords, *, longest: int | None = None
) -> EncodedPairs:
    """The tokens of some pairs.

    Args:
        pairs: in any order, which is kept.
        subwords: of both languages.
        longest: the most subwords of either sentence, begin and end not counted; pairs beyond are
            left out and counted. None takes all.
    """
    sources = subwords.encode_all(pair.source for pair in pairs)
    targets = subwords.encode_all(pair.target for pair in pairs)
    kept = [
        (source, target)
        for source, target in zip(sources, targets, strict=True)
        if longest is None or max(len(source), len(target)) <= longest
    ]
    return EncodedPairs(
        [[*source, END] for source, _ in kept],
        [[BEGIN, *target, END] for _, target in kept],
        len(pairs) - len(kept),
    )


class ShuffledBatches(ResumableBatches[Batch]):
    """Batches to train on, one per step, the same for the same seed; resumable.

    Args:
        pairs: to train on.
        tokens: in a batch, on either side, at most.
        steps: how many batches there are.
        seed: of the order.
        share: `(rank, of)`: give only every `of`-th pair of each batch.

    Raises:
        ValueError: if there is no pair, or one is longer than a batch.
    """

    def __init__(
        self,
        pairs: EncodedPairs,
        *,
        tokens: int,
        steps: int,
        seed: int,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        if not len(pairs):
            raise ValueError("ShuffledBatches: pairs must be at least one, got none")
        lengths = pairs.lengths
        if tokens < lengths.max():
            raise ValueError(
                f"ShuffledBatches: tokens must be at least {lengths.max()}, those of the longest "
                f"sentence, got {tokens}; choose a larger --batch"
            )
        super().__init__(steps)
        self._pairs, self._seed, self._share = pairs, seed, share
        self._order, ends = _by_length(lengths)
        # Where runs of equal lengths end: within them pairs change places.
        self._same = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
        self._runs = fitting_runs(lengths[self._order], tokens)
        self._epoch: tuple[int, ndarray, ndarray] | None = None

    @property
    def steps_in_epoch(self) -> int:
        """How many batches hold every pair once."""
        return len(self._runs)

    def at(self, step: int) -> Batch:
        """The batch of a step, or this device's share of it.

        A batch of fewer pairs than there are devices leaves some without; such a one gets a pair
        of which no target is scored.

        Args:
            step: from 0.
        """
        epoch, index = divmod(step, len(self._runs))
        order, turn = self._order_of(epoch)
        run = self._runs[turn[index]]
        rank, of = self._share
        chosen = order[run][rank::of]
        if len(chosen):
            return self._pairs.batch(chosen)
        source, inputs, targets = self._pairs.batch(order[run][:1])
        return source, inputs, torch.full_like(targets, IGNORE)

    def _order_of(self, epoch: int) -> tuple[ndarray, ndarray]:
        """The pairs by length, those of equal lengths in a random order, and that of batches."""
        if self._epoch is None or self._epoch[0] != epoch:
            rng = np.random.default_rng((self._seed, epoch))
            within = np.lexsort((rng.random(len(self._order)), self._same))
            self._epoch = epoch, self._order[within], rng.permutation(len(self._runs))
        return self._epoch[1:]


class OrderedBatches:
    """Every pair once, by length, the same each time.

    An iterable with a length; a list would be many loaders to Lightning.

    Args:
        pairs: to measure on.
        tokens: in a batch, on either side, at most; a longer pair is a batch of its own.
    """

    def __init__(self, pairs: EncodedPairs, *, tokens: int) -> None:
        lengths = pairs.lengths
        order, _ = _by_length(lengths)
        self._batches = [pairs.batch(order[run]) for run in fitting_runs(lengths[order], tokens)]

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._batches)


class TranslationData(lightning.LightningDataModule):
    """Shuffled batches to train on, and the validation pairs in order.

    Args:
        train: pairs to train on.
        valid: pairs to watch.
        tokens: in a batch, on either side, over all devices together.
        steps: how many batches there are to train on.
        seed: of their order.

    Raises:
        ValueError: as `ShuffledBatches`.
    """

    def __init__(
        self, train: EncodedPairs, valid: EncodedPairs, *, tokens: int, steps: int, seed: int
    ) -> None:
        super().__init__()
        self.train, self.valid, self.tokens = train, valid, tokens
        self.steps, self.seed = steps, seed
        # What it refuses is known before a training begins its folder.
        self._batches(share=(0, 1))

    def train_dataloader(self) -> Any:
        """The batches of this device."""
        rank, of = 0, 1
        if self.trainer is not None:
            rank, of = self.trainer.global_rank, self.trainer.world_size
        return self._batches(share=(rank, of))

    def val_dataloader(self) -> Any:
        """Every validation pair, once."""
        return OrderedBatches(self.valid, tokens=self.tokens)

    def _batches(self, *, share: tuple[int, int]) -> ShuffledBatches:
        return ShuffledBatches(
            self.train, tokens=self.tokens, steps=self.steps, seed=self.seed, share=share
        )


def fitting_runs(lengths: Int64[ndarray, "pairs 2"], tokens: int) -> list[slice]:
    """Runs of pairs that fit into one batch each, all pairs together.

    Args:
        lengths: of sources and targets, sorted by the longer of both.
        tokens: in a batch, on either side, padding included; a longer pair is alone.

    >>> fitting_runs(np.array([[2, 2], [3, 1], [3, 3], [9, 9]]), 6)
    [slice(0, 2, None), slice(2, 3, None), slice(3, 4, None)]
    """
    runs, start = [], 0
    for end, longer in enumerate(lengths.max(axis=1), 1):
        if (end - start) * longer > tokens and end - start > 1:
            runs.append(slice(start, end - 1))
            start = end - 1
    return [*runs, slice(start, len(lengths))] if len(lengths) else []


def _by_length(lengths: Int64[ndarray, "pairs 2"]) -> tuple[ndarray, ndarray]:
    """The pairs from the shortest to the longest, and where runs of equal lengths end."""
    keys = lengths[:, 1], lengths[:, 0], lengths.max(axis=1)
    order = np.lexsort(keys)
    ordered = lengths[order]
    changes = (ordered[1:] != ordered[:-1]).any(axis=1).nonzero()[0] + 1
    return order, np.append(changes, len(order))
