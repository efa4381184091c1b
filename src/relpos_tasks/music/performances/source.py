"""A folder of performances, split, with all that training and measuring ask of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from jaxtyping import Int64
from numpy import ndarray

from ..kinds import PERFORMANCES
from ..score_lines import ScoreError
from .baselines import counting_baselines
from .excerpts import excerpts
from .folder import read_folder
from .published import published_split, split_as_published
from .settings import PerformanceSettings
from .split import PerformanceSplit, digest_of, split_performances
from .tokens import EventVocabulary, encode

__all__ = ["PerformanceSource", "read_performances"]


@dataclass(frozen=True, eq=False)
class PerformanceSource:
    """Performances in three parts.

    Args:
        name: of the folder.
        digest: of the performances, so that a run cannot go on with others.
        split: the performances.
        vocabulary: the tokens.
    """

    name: str
    digest: str
    split: PerformanceSplit
    vocabulary: EventVocabulary = field(default_factory=EventVocabulary)

    def about(self) -> dict[str, Any]:
        """What a checkpoint says about its data."""
        return {
            "kind": PERFORMANCES,
            "name": self.name,
            "digest": self.digest,
            "split": str(self.split),
            "vocabulary": {"size": self.vocabulary.size},
        }

    def data(self, settings: PerformanceSettings) -> Any:
        """Lightning's data module: the batches to train and to validate on.

        Args:
            settings: sizes and budget.
        """
        # Reading and playing do without Lightning.
        from .data import PerformanceData  # noqa: PLC0415

        training = settings.training
        return PerformanceData(
            self.split,
            window=settings.window,
            batch=training.batch,
            steps=training.steps,
            seed=training.seed,
            valid_tokens=settings.valid_tokens,
        )

    def held_out(self, most: int | None = None, *, window: int) -> list[Int64[ndarray, "_"]]:
        """The sequences to measure on.

        Args:
            most: tokens in all; None: all there are.
            window: tokens that a model was trained on, four times as many of which are kept of each
                longer performance, for the length test.
        """
        return excerpts(self.split.held_out, most=most, least=4 * window)

    def valid(self, most: int | None = None, *, window: int) -> list[Int64[ndarray, "_"]]:
        """The sequences to choose settings on.

        Args:
            most: as for those to measure on.
            window: likewise.
        """
        return excerpts(self.split.valid, most=most, least=4 * window)

    def counting(self, most: int | None = None, *, window: int) -> dict[str, float]:
        """Nats per token of each counting baseline on the held-out sequences.

        Args:
            most: as for those to measure on.
            window: likewise.
        """
        return counting_baselines(map(encode, self.split.train), self.held_out(most, window=window))


def read_performances(
    folder: str | Path, *, train_on_valid: bool = False, progress: bool = False
) -> PerformanceSource:
    """The performances to train and to measure on.

    What they hold decides which part each is in, unless a table beside them says it, such as
    `maestro-v3.0.0.csv`.

    Args:
        folder: of MIDI files, in it and in its folders.
        train_on_valid: whether the validation performances are among those to train on, too.
        progress: True shows a progress bar while files are read.

    Raises:
        ScoreError: if the folder or its table cannot be used, or a part has no performances.
    """
    published = published_split(folder)
    performances = read_folder(folder, progress=progress)
    try:
        split = (
            split_performances(performances)
            if published is None
            else split_as_published(performances, published)
        )
    except ValueError as error:
        raise ScoreError(f"{folder}: {error}") from error
    digest = hashlib.blake2b(digest_size=8)
    for part, performances in split.parts.items():
        if split.as_published is not None:
            # What the performances hold does not say where a part ends.
            digest.update(part.encode())
        for performance in performances:
            digest.update(performance.name.encode(errors="surrogateescape"))
            digest.update(digest_of(performance))
    if train_on_valid:
        split = replace(split, train=(*split.train, *split.valid))
    return PerformanceSource(Path(folder).resolve().name, digest.hexdigest(), split)
