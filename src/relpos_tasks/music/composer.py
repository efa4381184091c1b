"""What one kind of music adds to a comparison: a new piece, and what the page says of the kind.

Chorales (`chorale_composer`) and performances (`performances.composer`) share all the rest:
training, measuring, figures and tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ..models.decoder import DecoderLM
from ..report.blocks import Section
from .reported import Reported

__all__ = ["Composer", "Words"]


@dataclass(frozen=True)
class Words:
    """What the page calls things.

    Args:
        title: of the page.
        learned: what the models learned, as in "Decoders learned ...".
        works: one of them in the plural, as in "30 held-out pieces".
        new: what one of the models makes, as in "one of them wrote ...".
        changed: what is changed at random in training, as in "training batches, ...".
        rows: a sentence on what to look for in the rows of positions.
        protocol: how the music is read, split, measured and changed, as sentences.
        reported: figures of others on the same held-out works; None where there are none.
    """

    title: str
    learned: str
    works: str
    new: str
    changed: str
    rows: str
    protocol: Sequence[str]
    reported: Reported | None = None

    def counted(self, number: int) -> str:
        """So many of the works, such as "30 pieces" or "1 piece"."""
        return f"{number} {self.works.removesuffix('s') if number == 1 else self.works}"


@runtime_checkable
class Composer(Protocol):
    """Lets a model of one kind of music make a piece, and words the page."""

    @property
    def length(self) -> str:
        """How long the piece is to be, such as "8 bars"."""
        ...

    def check(self, folder: Path) -> None:
        """Raise if the piece could not be written.

        Args:
            folder: of the run.

        Raises:
            ValueError: that names the file and what is in the way.
        """
        ...

    def words(self, settings: Any, source: Any) -> Words:
        """What the page calls things.

        Args:
            settings: sizes and budget.
            source: the music.
        """
        ...

    def compose(
        self,
        model: DecoderLM,
        settings: Any,
        source: Any,
        *,
        position: str,
        seed: int,
    ) -> Section:
        """A new piece.

        Args:
            model: that makes it.
            settings: sizes and budget.
            source: the music.
            position: of the model.
            seed: of the sampling.

        Returns:
            The piece as a part of the page, with its files.
        """
        ...
