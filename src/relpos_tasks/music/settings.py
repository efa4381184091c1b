"""Sizes and budgets of the chorale task, by name."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..training.limits import MAX_STEPS, check_seed
from ..training.settings import TrainingSettings

__all__ = ["PRESETS", "MusicSettings", "preset"]


@dataclass(frozen=True)
class MusicSettings:
    """The model's sizes, the window and the training.

    Args:
        window: tokens in a training sequence, a multiple of 8; four tokens are a sixteenth.
        width: of the model.
        layers: of the decoder.
        heads: per layer.
        hidden: width of the feed-forward layers.
        dropout: probability.
        training: how to train.
    """

    window: int = 256
    width: int = 128
    layers: int = 3
    heads: int = 4
    hidden: int = 512
    dropout: float = 0.0
    training: TrainingSettings = field(default_factory=TrainingSettings)

    def __post_init__(self) -> None:
        if self.window < 8 or self.window % 8:
            raise ValueError(
                f"MusicSettings: window must be a positive multiple of 8, got {self.window}"
            )


PRESETS = {
    # Sizes and budget that fit two CPU cores in a few minutes, chosen on the validation pieces. So
    # few passes over the data do not overfit: no dropout.
    "default": MusicSettings(),
    # The whole job in a minute, for trying out and for CI.
    "tiny": MusicSettings(
        window=64,
        width=32,
        layers=2,
        heads=2,
        hidden=64,
        dropout=0.0,
        training=TrainingSettings(
            steps=300, batch=8, learning_rate=5e-3, warmup=20, valid_every=100, checkpoint_every=50
        ),
    ),
    # Five layers of width 512, as Huang et al. 2018 report for their relative model on these
    # chorales; heads, feed-forward width and budget are ours. For a GPU, on which nobody has run it
    # yet: the steps are meant for eight minutes, both models together.
    "paper": MusicSettings(
        window=512,
        width=512,
        layers=5,
        heads=8,
        hidden=1024,
        dropout=0.1,
        training=TrainingSettings(
            steps=6_000,
            batch=16,
            learning_rate=5e-4,
            warmup=500,
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
    window: int | None = None,
    seed: int | None = None,
) -> MusicSettings:
    """The settings of a name, some of them replaced.

    Args:
        name: one of `PRESETS`.
        steps: optimiser steps; None keeps the preset's, like the others.
        batch: sequences per step.
        window: tokens per sequence.
        seed: of everything random.

    Raises:
        ValueError: if there is no such preset, or a number is out of range.

    >>> preset("tiny", steps=5).training.steps
    5
    """
    if name not in PRESETS:
        raise ValueError(f"preset: name must be one of {', '.join(PRESETS)}, got {name!r}")
    found = PRESETS[name]
    given = {"steps": steps, "batch": batch}
    for argument, value in given.items():
        if value is not None and value < 1:
            raise ValueError(f"preset: {argument} must be at least 1, got {value}")
    if steps is not None and steps > MAX_STEPS:
        raise ValueError(f"preset: steps must be at most {MAX_STEPS}, got {steps}")
    if seed is not None:
        given["seed"] = check_seed("preset", seed)
    changes = {argument: value for argument, value in given.items() if value is not None}
    training = replace(found.training, **changes)
    return replace(found, training=training, window=found.window if window is None else window)
