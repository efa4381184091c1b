"""Sizes and budgets of the vision task, by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..models.map_positions import MAP_POSITIONS
from ..models.pixel_classifier import CONVOLUTION
from ..training.settings import TrainingSettings, with_budget

__all__ = ["PRESETS", "VisionSettings", "preset"]


def _training() -> TrainingSettings:
    return TrainingSettings(
        steps=800,
        batch=16,
        learning_rate=4e-3,
        warmup=50,
        weight_decay=0.05,
        valid_every=100,
        checkpoint_every=50,
    )


@dataclass(frozen=True)
class VisionSettings:
    """The model's sizes, what is compared and how much is measured, and the training.

    Args:
        width: channels of the map.
        layers: blocks.
        heads: per block.
        block: `"attention"` or `"bottleneck"`, as in `PixelClassifierConfig`.
        compared: the positions of a comparison where no others are asked for.
        canvases: of each test, to measure on.
        watched: canvases of the validation images to watch while training.
        training: how to train.
    """

    width: int = 48
    layers: int = 3
    heads: int = 3
    block: str = "attention"
    compared: Sequence[str] = ("none", "absolute", "grid")
    canvases: int = 400
    watched: int = 100
    training: TrainingSettings = field(default_factory=_training)

    @property
    def positions(self) -> list[str]:
        """All positions that the blocks know."""
        return [*MAP_POSITIONS, *([CONVOLUTION] if self.block == "bottleneck" else [])]

    def recorded(self) -> dict[str, Any]:
        """What `model.json` says of the settings, beside the model's own."""
        return {"watched": self.watched, "training": asdict(self.training)}

    def with_seed(self, seed: int) -> VisionSettings:
        """The same with another seed.

        Args:
            seed: of everything random.
        """
        return replace(self, training=replace(self.training, seed=seed))


PRESETS = {
    # Sizes and budget that fit two CPU cores in a few minutes, chosen on the validation images.
    "default": VisionSettings(),
    # The whole job in well under a minute, for trying out and for CI.
    "tiny": VisionSettings(
        width=16,
        layers=2,
        heads=2,
        canvases=20,
        watched=20,
        training=replace(_training(), steps=60, batch=8, warmup=10, valid_every=20),
    ),
    # BoTNet's blocks, with a convolution in place of attention, by content alone, and with relative
    # positions, as Srinivas et al. (2021) compare them.
    "botnet": VisionSettings(
        width=64,
        heads=1,
        block="bottleneck",
        compared=(CONVOLUTION, "none", "grid"),
        training=replace(_training(), steps=600),
    ),
    # Wider, deeper and longer, for a GPU, on which nobody has run it yet; its sizes are ours.
    "paper": VisionSettings(
        width=128,
        layers=6,
        heads=4,
        canvases=2_000,
        watched=400,
        training=replace(
            _training(),
            steps=8_000,
            batch=64,
            learning_rate=1e-3,
            warmup=400,
            valid_every=500,
            checkpoint_every=500,
        ),
    ),
}


def preset(
    name: str,
    *,
    steps: int | None = None,
    batch: int | None = None,
    seed: int | None = None,
) -> VisionSettings:
    """The settings of a name, some of them replaced.

    Args:
        name: one of `PRESETS`.
        steps: optimiser steps; None keeps the preset's, like the others.
        batch: canvases per step.
        seed: of everything random.

    Raises:
        ValueError: if there is no such preset, or a number is out of range.

    >>> preset("tiny", steps=5).training.steps
    5
    """
    if name not in PRESETS:
        raise ValueError(f"preset: name must be one of {', '.join(PRESETS)}, got {name!r}")
    found = PRESETS[name]
    return replace(found, training=with_budget(found.training, steps=steps, batch=batch, seed=seed))
