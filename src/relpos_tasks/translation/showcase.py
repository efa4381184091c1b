"""What one kind of pairs adds to a comparison: what its models make, and the page on it.

Sentences (`text_showcase`) and chorales (`harmony_showcase`) share all the rest: models, training,
nats per target token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ..models.encoder_decoder import EncoderDecoder
from ..report.blocks import Report
from .results import ComparisonResults, Translations

__all__ = ["Showcase"]


@runtime_checkable
class Showcase(Protocol):
    """Lets the models of a comparison show what they can."""

    def check(self, folder: Path) -> None:
        """Raise if what the models make could not be written.

        Args:
            folder: of the run.

        Raises:
            ValueError: that names the file and what is in the way.
        """
        ...

    def translations(
        self, models: Mapping[str, Sequence[EncoderDecoder]], settings: Any, source: Any
    ) -> Translations | None:
        """The held-out sentences in the models' words, and their scores; None for chorales.

        Args:
            models: by position, one for each seed.
            settings: sizes and budget.
            source: the pairs.
        """
        ...

    def report(self, settings: Any, source: Any, results: ComparisonResults) -> Report:
        """The page, and the files that belong to it.

        Args:
            settings: sizes and budget.
            source: the pairs.
            results: all numbers.
        """
        ...
