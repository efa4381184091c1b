"""The options of training on canvases of digits: those of every task, and the preset."""

# ruff: noqa: PLC0415
from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from .training_options import TrainingOptions

if TYPE_CHECKING:
    from ..vision.settings import VisionSettings

__all__ = ["VisionOptions", "VisionPreset"]


class VisionPreset(StrEnum):
    """Sizes and budgets."""

    default = "default"
    tiny = "tiny"
    botnet = "botnet"
    paper = "paper"


@dataclass(frozen=True)
class VisionOptions(TrainingOptions):
    """How large, beside the options of every task."""

    batch: Annotated[
        int | None,
        typer.Option(min=1, help="Canvases per step over all devices, in place of the preset's."),
    ] = None
    preset: Annotated[
        VisionPreset,
        typer.Option(
            help="Sizes and budget: default (two CPU cores, minutes), tiny (the whole job in half "
            "a minute), botnet (the blocks of Bottleneck Transformers beside the same blocks with "
            "a convolution), paper (larger and longer, for a GPU).",
        ),
    ] = VisionPreset.default

    def settings(self) -> VisionSettings:
        """The preset's sizes and budget, with what was given in their place."""
        from ..vision.settings import preset

        return preset(self.preset, steps=self.steps, batch=self.batch, seed=self.seed)

    @property
    def default_name(self) -> str:
        """Made from the preset."""
        return "vision" if self.preset is VisionPreset.default else f"vision-{self.preset}"
