"""The options of training encoder-decoders: those of every task, what on and how large."""

# ruff: noqa: PLC0415
from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .training_options import TrainingOptions

if TYPE_CHECKING:
    from ..translation.settings import TextSettings, TranslationSettings
    from ..translation.showcase import Showcase
    from ..translation.source import TranslationSource

__all__ = [
    "AlphaOption",
    "BeamOption",
    "PairsOption",
    "SourceOption",
    "TargetOption",
    "TranslationOptions",
    "TranslationPreset",
]

# As the search has it, which is slow to import.
_MOST_ALPHA = 10

PairsOption = Annotated[
    Path | None,
    typer.Option(
        help="Parallel text: a folder with train.en, train.de, val.en, val.de (Multi30k's names), "
        "plain or .gz, or a file of pairs with a tab between, .tsv, .txt or .zip (Tatoeba's)."
    ),
]
SourceOption = Annotated[
    str | None,
    typer.Option(
        help="The language to translate from, such as en, where the names leave it open; of a file "
        "of pairs any word for its first column."
    ),
]
TargetOption = Annotated[str | None, typer.Option(help="The language to translate to, such as de.")]


def _length_penalty(number: float | None) -> float | None:
    # Typer's own bounds have no words for NaN.
    if number is not None and not 0 <= number <= _MOST_ALPHA:
        raise typer.BadParameter(f"must be a number in 0..{_MOST_ALPHA}, got {number}")
    return number


BeamOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=100,
        help="Hypotheses kept while searching; 1 is greedy. By default as many as the model was "
        "compared with, or 4.",
        show_default=False,
    ),
]
AlphaOption = Annotated[
    float | None,
    typer.Option(
        callback=_length_penalty,
        help=f"Of the length penalty, at most {_MOST_ALPHA}; 0: none. By default that which the "
        "model was compared with, or 0.6.",
        show_default=False,
    ),
]


class TranslationPreset(StrEnum):
    """Sizes and budgets."""

    default = "default"
    tiny = "tiny"
    paper = "paper"


@dataclass(frozen=True)
class TranslationOptions(TrainingOptions):
    """What to train on and how large, beside the options of every task."""

    batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens per step on either side over all devices, in place of the preset's; with "
            "--chorales, crops.",
        ),
    ] = None
    data: PairsOption = None
    source: SourceOption = None
    target: TargetOption = None
    chorales: Annotated[
        bool,
        typer.Option(
            "--chorales",
            help="Harmonise in place of translating: soprano in, three voices out, on the chorales "
            "inside the music21 package. Needs no --data.",
        ),
    ] = False
    length_test: Annotated[
        bool,
        typer.Option(
            "--length-test",
            help="Train on sentences of at most 10 words, and measure on longer ones too.",
        ),
    ] = False
    preset: Annotated[
        TranslationPreset,
        typer.Option(
            help="Sizes and budget: default (minutes a model on two cores), tiny (the "
            "whole job in two minutes), paper (Vaswani's base model, for a GPU and millions of "
            "pairs; not for --chorales).",
        ),
    ] = TranslationPreset.default

    def settings(self) -> TranslationSettings:
        """The preset's sizes and budget, with what was given in their place."""
        from ..translation.settings import CHORALE_PRESETS, preset

        if not self.chorales:
            return self._text_settings()
        for option in ("data", "source", "target", "length_test"):
            if getattr(self, option):
                name = option.replace("_", "-")
                raise ValueError(f"--{name}: is for text; leave it out with --chorales")
        if self.preset not in CHORALE_PRESETS:
            raise ValueError(
                f"--preset: must be one of {', '.join(CHORALE_PRESETS)} with --chorales, "
                f"got {self.preset}"
            )
        return preset(
            self.preset,
            presets=CHORALE_PRESETS,
            steps=self.steps,
            batch=self.batch,
            seed=self.seed,
        )

    def read(self, settings: TranslationSettings) -> TranslationSource:
        """The pairs.

        Args:
            settings: the vocabulary, and whether lengths are tested.
        """
        import sys

        if self.chorales:
            from ..translation.chorales import read_chorales

            return read_chorales(progress=sys.stderr.isatty())
        from ..translation.settings import TextSettings
        from ..translation.source import read_source

        assert isinstance(settings, TextSettings)
        return read_source(
            self.data,
            source=self.source,
            target=self.target,
            vocabulary=settings.vocabulary,
            by_length=settings.length_test,
            largest=settings.long_sentences,
        )

    def check_data(self) -> None:
        """Raise where there is no data, before anything slow is imported."""
        if not self.chorales:
            from ..translation.texts import check_path

            check_path(self.data)

    def showcase(self) -> Showcase:
        """Of what the models make."""
        if self.chorales:
            from ..translation.harmony_showcase import HarmonyShowcase

            return HarmonyShowcase()
        from ..translation.text_showcase import TextShowcase

        return TextShowcase()

    @property
    def default_name(self) -> str:
        """Made from the data and the preset."""
        name = "harmony" if self.chorales else "translation"
        if self.length_test:
            name = f"{name}-lengths"
        return name if self.preset is TranslationPreset.default else f"{name}-{self.preset}"

    def _text_settings(self) -> TextSettings:
        from ..translation.settings import preset

        found = preset(self.preset, steps=self.steps, batch=self.batch, seed=self.seed)
        return replace(found, length_test=self.length_test)
