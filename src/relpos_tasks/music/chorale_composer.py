"""A new chorale at the end of a comparison, and what the page says of chorales."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..models.decoder import DecoderLM
from ..models.positions import POSITIONS
from ..report.blocks import Section, TextBlock
from .chorale_blocks import chorale_blocks
from .composer import Words
from .export import check_chorale, chorale_contents
from .generate import check_bars, compose
from .piece import Piece
from .reported import HUANG_2018, is_literature
from .settings import MusicSettings
from .source import EMBEDDED, Source
from .wording import composing_model

__all__ = ["ChoraleComposer"]

_STEM = "chorale"


@dataclass(frozen=True)
class ChoraleComposer:
    """Lets a model compose a chorale.

    Args:
        bars: how many.

    Raises:
        ValueError: if there are none or too many.
    """

    bars: int = 8

    def __post_init__(self) -> None:
        check_bars("--bars:", self.bars)

    @property
    def length(self) -> str:
        """How long the piece is to be."""
        return _in_bars(self.bars)

    def check(self, folder: Path) -> None:
        """Raise if the chorale could not be written.

        Args:
            folder: of the run.
        """
        check_chorale(folder / _STEM)

    def words(self, settings: MusicSettings, source: Source) -> Words:
        """What the page calls things.

        Args:
            settings: sizes and budget.
            source: the pieces.
        """
        return Words(
            title="Bach chorales with relative and with absolute positions",
            learned="the four-part chorales of Bach that ship with music21"
            if source.name == EMBEDDED
            else f"the chorales of {source.name}",
            works="pieces",
            new="wrote a chorale of its own",
            changed="transposed at random",
            rows="The same voice comes back every four tokens, the same place in the beat every "
            "sixteen; rows far back were trained less often.",
            protocol=_protocol(settings, source),
            reported=HUANG_2018 if is_literature(source.split.held_out) else None,
        )

    def compose(
        self,
        model: DecoderLM,
        settings: MusicSettings,
        source: Source,
        *,
        position: str,
        seed: int,
    ) -> Section:
        """A new chorale.

        Args:
            model: that makes it.
            settings: sizes and budget.
            source: the pieces that it learned.
            position: of the model.
            seed: of the sampling.

        Returns:
            The chorale as a part of the page, with its files.
        """
        chorale = compose(
            model,
            source.vocabulary,
            source.ranges,
            bars=self.bars,
            seed=seed,
            name=f"A chorale by a model with {POSITIONS[position].title} positions",
        )
        files = chorale_contents(Path(_STEM), chorale)
        note = TextBlock(_note(chorale, settings, position))
        return Section("chorale", "A new chorale", [note, *chorale_blocks(files)], files)


def _note(chorale: Piece, settings: MusicSettings, position: str) -> str:
    bars = chorale.steps // chorale.steps_per_bar
    return (
        f"{_in_bars(bars)} by {composing_model(settings, 'pieces')} "
        f"({POSITIONS[position].title}), drawn one token at a time, soprano, alto, tenor, "
        f"bass, sixteenth by sixteenth: {4 * chorale.steps:,} tokens from a model trained on "
        f"{settings.window}. Nothing was chosen among several tries."
    )


def _protocol(settings: MusicSettings, source: Source) -> list[str]:
    onsets = (
        "A struck and a held note are different tokens."
        if source.vocabulary.onsets
        else "Pitches only: holds are not marked."
    )
    parts = (
        "pieces with the same music fall into the same part, and nothing was chosen by looking at "
        "the held-out ones"
        if source.name == EMBEDDED
        else "the file's valid pieces are held out as they are, whether or not its train holds the "
        "same music"
    )
    return [
        "One token per voice and sixteenth, soprano, alto, tenor, bass, then the next sixteenth "
        f"({source.vocabulary.size} tokens in all). {onsets}",
        f"Pieces: {source.split}. The split is by piece and fixed; {parts}.",
        f"Every token of every held-out piece is scored once, in windows of {settings.window} "
        f"tokens that slide by {settings.window // 2}; the begin token is not scored.",
        "Training pieces are transposed at random as far as each voice stays in its range.",
    ]


def _in_bars(bars: int) -> str:
    return "1 bar" if bars == 1 else f"{bars} bars"
