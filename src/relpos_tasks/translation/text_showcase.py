"""Sentences: what the models translate them to, and the page on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..models.encoder_decoder import EncoderDecoder
from ..report.blocks import Report
from .measure import beyond_training, translations
from .results import ComparisonResults, Translations
from .settings import TextSettings
from .source import Source
from .text_page import text_report

__all__ = ["TextShowcase"]


@dataclass(frozen=True)
class TextShowcase:
    """Lets the models translate the held-out sentences."""

    def check(self, folder: Path) -> None:
        """Nothing is written beside the page.

        Args:
            folder: of the run.
        """

    def translations(
        self,
        models: Mapping[str, Sequence[EncoderDecoder]],
        settings: TextSettings,
        source: Source,
    ) -> Translations:
        """The held-out sentences in the models' words, and their scores.

        Args:
            models: by position, one for each seed.
            settings: of the search.
            source: the pairs.
        """
        found = translations(models, settings, source)
        return replace(found, beyond=beyond_training(found)) if settings.length_test else found

    def report(self, settings: TextSettings, source: Source, results: ComparisonResults) -> Report:
        """The page.

        Args:
            settings: sizes and budget.
            source: the pairs.
            results: all numbers.
        """
        return text_report(settings, source, results)
