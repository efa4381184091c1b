"""Chorales as pairs: a soprano, and the three voices that Bach wrote below it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..music.source import Source as Chorales
from ..music.source import read_source
from ..music.split import Split
from ..music.tokens import BEGIN, Vocabulary
from .batches import Batch
from .harmonise import HarmonyData, harmony_windows
from .kinds import CHORALES
from .settings import ChoraleSettings

__all__ = ["ChoraleSource", "read_chorales"]


@dataclass(frozen=True, eq=False)
class ChoraleSource:
    """The chorales of the music task, each as a pair.

    Args:
        chorales: split, with their vocabulary.
    """

    chorales: Chorales

    @property
    def name(self) -> str:
        """Of the chorales."""
        return self.chorales.name

    @property
    def digest(self) -> str:
        """Of the chorales, so that a run cannot go on with others."""
        return self.chorales.digest

    @property
    def split(self) -> Split:
        """The chorales in three parts."""
        return self.chorales.split

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens of all voices."""
        return self.chorales.vocabulary

    @property
    def tokens(self) -> int:
        """Of the vocabulary."""
        return self.vocabulary.size

    @property
    def tied(self) -> bool:
        """False: with so few tokens a matrix for each use costs little and learns much faster."""
        return False

    @property
    def padding(self) -> int:
        """Stands behind the end of a soprano."""
        return BEGIN

    def about(self) -> dict[str, Any]:
        """What a checkpoint says about its data."""
        return self.chorales.about() | {"kind": CHORALES}

    def data(self, settings: ChoraleSettings) -> HarmonyData:
        """Crops, transposed at random.

        Args:
            settings: the sizes and the budget.
        """
        training = settings.training
        return HarmonyData(
            self.split,
            self.vocabulary,
            window=settings.window,
            batch=training.batch,
            steps=training.steps,
            seed=training.seed,
        )

    def held_out(self, settings: ChoraleSettings) -> Iterable[Batch]:
        """Windows in which every token of the lower voices is scored once.

        Args:
            settings: the window.
        """
        return harmony_windows(self.split.held_out, self.vocabulary, window=settings.window)

    def valid(self, settings: ChoraleSettings) -> Iterable[Batch]:
        """Likewise of the validation pieces.

        Args:
            settings: the window.
        """
        return harmony_windows(self.split.valid, self.vocabulary, window=settings.window)


def read_chorales(*, progress: bool = False) -> ChoraleSource:
    """The chorales inside music21.

    Args:
        progress: True shows a progress bar while scores are read.

    Raises:
        ScoreError: if they cannot be used.
    """
    chorales = read_source(progress=progress)
    assert isinstance(chorales, Chorales)
    return ChoraleSource(chorales)
