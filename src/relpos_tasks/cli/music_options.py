"""The options of training on music: those of every task, and what is of music alone."""

# ruff: noqa: PLC0415
from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from .options import DataOption, multiple_of_8
from .training_options import TrainingOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..music.settings import MusicSettings
    from ..music.source import MusicSource
    from ..training.devices import Devices

__all__ = ["MusicOptions", "Preset"]


class Preset(StrEnum):
    """Sizes and budgets."""

    default = "default"
    tiny = "tiny"
    literature = "literature"
    paper = "paper"
    maestro = "maestro"


@dataclass(frozen=True)
class MusicOptions(TrainingOptions):
    """What to train on and how large, beside the options of every task."""

    data: DataOption = None
    preset: Annotated[
        Preset,
        typer.Option(
            help="Sizes and budget: default (two CPU cores, minutes), tiny (the whole job in a "
            "minute), literature (two CPU cores, hours: for the chorales that the literature "
            "reports on, by --data; --precision bf16-mixed is faster on CPUs with AMX), for a GPU "
            "paper (chorales) and maestro (performances): depth and window of Huang et al. 2018.",
        ),
    ] = Preset.default
    window: Annotated[
        int | None,
        typer.Option(
            min=8,
            callback=multiple_of_8,
            help="Tokens in a training sequence, a multiple of 8, in place of the preset's. "
            "Of chorales, four tokens are a sixteenth.",
        ),
    ] = None
    max_distance: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1 << 20,
            help="The farthest offset with a row of its own, in tokens, for huang, shaw, deberta "
            "and relative-logits. By default 64 for shaw, and the whole window for the others.",
        ),
    ] = None
    random_start: Annotated[
        bool,
        typer.Option(
            "--random-start",
            help="Let absolute positions begin anywhere in four windows in training, so that "
            "longer sequences find trained rows.",
        ),
    ] = False

    train_on_valid: Annotated[
        bool | None,
        typer.Option(
            "--train-on-valid/--no-train-on-valid",
            help="Whether to train on the validation pieces too, once settings are chosen: what is "
            "watched in training then says nothing of other music. By default the preset "
            "literature does.",
            show_default=False,
        ),
    ] = None

    context_parallel: Annotated[
        int,
        typer.Option(
            min=1,
            help="Devices that share the tokens of each sequence, for windows that do not fit one: "
            "--devices 4 --context-parallel 2 are two such pairs.",
        ),
    ] = 1

    def where(self) -> Devices:
        """The devices to train on."""
        if self.context_parallel > 1 and self.random_start:
            raise ValueError(
                "--random-start: must be left out with --context-parallel, whose devices would "
                "each draw starts of their own, got both"
            )
        return replace(super().where(), context_parallel=self.context_parallel)

    @property
    def performs(self) -> bool:
        """Whether the data are performances: a folder, of MIDI files."""
        return self.data is not None and self.data.is_dir()

    def settings(self) -> MusicSettings:
        """The preset's sizes and budget, with what was given in their place."""
        from ..music.performances.settings import PRESETS as PERFORMANCE_PRESETS
        from ..music.settings import PRESETS, preset

        if self.data is not None and not self.data.exists():
            # Before anything is said of what its kind of music takes.
            raise ValueError(f"--data: {self.data}: cannot be read: No such file or directory")
        presets = PERFORMANCE_PRESETS if self.performs else PRESETS
        if self.preset not in presets:
            data = "a folder of MIDI files" if self.performs else "chorales"
            raise ValueError(
                f"--preset: must be one of {', '.join(presets)} for {data}, got {self.preset}"
            )
        return preset(
            self.preset,
            presets=presets,
            steps=self.steps,
            batch=self.batch,
            window=self.window,
            seed=self.seed,
            max_distance=self.max_distance,
            random_start=self.random_start,
            train_on_valid=self.train_on_valid,
        )

    def read(self, settings: MusicSettings) -> MusicSource:
        """The music.

        Args:
            settings: say which part of it is trained on.
        """
        from ..music.source import read_source

        return read_source(
            self.data, train_on_valid=settings.train_on_valid, progress=sys.stderr.isatty()
        )

    def check_used(self, positions: Sequence[str]) -> None:
        """Raise if an option would change none of the models.

        Args:
            positions: of the models.

        Raises:
            ValueError: with the schemes that it is for.
        """
        from ..models.positions import POSITIONS

        clipped = [name for name, scheme in POSITIONS.items() if scheme.clipped]
        at_input = [name for name, scheme in POSITIONS.items() if scheme.at_input is not None]
        for option, given, schemes in (
            ("--max-distance", self.max_distance is not None, clipped),
            ("--random-start", self.random_start, at_input),
        ):
            if given and not set(schemes) & set(positions):
                raise ValueError(
                    f"{option}: is for {', '.join(schemes)}; must be given with one of them, got "
                    f"{', '.join(positions)}"
                )

    @property
    def default_name(self) -> str:
        """Made from the data and the preset."""
        music = "performances" if self.performs else "literature"
        if self.data is None:
            music = "chorales"
        return music if self.preset is Preset.default else f"{music}-{self.preset}"
