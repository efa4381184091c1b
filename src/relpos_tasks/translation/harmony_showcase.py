"""Chorales: a soprano of the held-out ones, harmonised anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..models.encoder_decoder import EncoderDecoder
from ..music.export import check_chorale, chorale_contents
from ..report.blocks import Report
from .chorales import ChoraleSource
from .harmonise import harmonise, soprano_of
from .harmony_page import Harmony, harmony_report
from .positions import title_of
from .results import ComparisonResults
from .settings import ChoraleSettings

__all__ = ["HarmonyShowcase"]

_STEM = "harmony"


@dataclass(frozen=True)
class HarmonyShowcase:
    """Lets the best model put three voices below a soprano that nobody trained on."""

    def check(self, folder: Path) -> None:
        """Raise if the chorale could not be written.

        Args:
            folder: of the run.
        """
        check_chorale(folder / _STEM)

    def translations(
        self,
        models: Mapping[str, Sequence[EncoderDecoder]],
        settings: ChoraleSettings,
        source: ChoraleSource,
    ) -> None:
        """None: there are many right ways to harmonise, so that BLEU would say nothing.

        Args:
            models: by position, one for each seed.
            settings: of the search.
            source: the chorales.
        """

    def report(
        self, settings: ChoraleSettings, source: ChoraleSource, results: ComparisonResults
    ) -> Report:
        """The page, with a chorale as MIDI, MusicXML and sound.

        Args:
            settings: sizes and budget.
            source: the chorales.
            results: all numbers.
        """
        # The best on the validation pieces; the first held-out piece.
        position = min(
            results.trained, key=lambda name: results.trained[name][0].curves["valid"][-1][1]
        )
        piece = source.split.held_out[0]
        chorale = harmonise(
            results.trained[position][0].model,
            source.vocabulary,
            soprano_of(piece),
            window=settings.window,
            beam=settings.beam,
            name=f"{piece.name}, harmonised ({title_of(position)})",
        )
        harmony = Harmony(piece.name, position, chorale_contents(Path(_STEM), chorale))
        return harmony_report(settings, source, results, harmony)
