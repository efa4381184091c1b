"""Sizes and budgets for music, and those for chorales by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from relpos.checks import check_count

from ..training.settings import TrainingSettings, with_budget

__all__ = ["PRESETS", "MusicSettings", "preset"]

SettingsT = TypeVar("SettingsT", bound="MusicSettings")


@dataclass(frozen=True)
class MusicSettings:
    """The model's sizes, the window and the training.

    Args:
        window: tokens in a training sequence, a multiple of 8.
        width: of the model.
        layers: of the decoder.
        heads: per layer.
        hidden: width of the feed-forward layers.
        dropout: probability.
        max_distance: the farthest offset with a row of its own, in tokens; None means 64 for
            `"shaw"`, and every offset of the window for other tables.
        random_start: whether positions at the input begin anywhere in four windows while training.
        train_on_valid: whether the pieces that settings are chosen on are trained on too, once
            settings are chosen; they are still watched, and say nothing of other music then.
        training: how to train.
        held_out_tokens: the most tokens to measure on at the end; None: all, as with chorales.
        compared: the positions of a comparison where no others are asked for.
    """

    window: int = 256
    width: int = 128
    layers: int = 3
    heads: int = 4
    hidden: int = 512
    dropout: float = 0.0
    max_distance: int | None = None
    random_start: bool = False
    train_on_valid: bool = False
    training: TrainingSettings = field(default_factory=TrainingSettings)
    held_out_tokens: int | None = None
    compared: Sequence[str] = ("absolute", "huang", "shaw")

    def __post_init__(self) -> None:
        if self.window < 8 or self.window % 8:
            raise ValueError(
                f"MusicSettings: window must be a positive multiple of 8, got {self.window}"
            )
        if self.max_distance is not None:
            check_count("MusicSettings", "max_distance", self.max_distance)

    def recorded(self) -> dict[str, Any]:
        """What `model.json` says of the settings, beside the model's own."""
        return {
            "window": self.window,
            "max_distance": self.max_distance,
            "random_start": self.random_start,
            "train_on_valid": self.train_on_valid,
            "training": asdict(self.training),
            "held_out_tokens": self.held_out_tokens,
        }

    def with_seed(self, seed: int) -> MusicSettings:
        """The same with another seed.

        Args:
            seed: of everything random.
        """
        return replace(self, training=replace(self.training, seed=seed))


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
    # For the grid that the literature reports on, some hours on two CPU cores. Sizes, dropout,
    # optimiser, budget, averaging and the relative scheme were chosen on its validation pieces,
    # which are set aside from the literature's train; with all chosen, all of that is trained on.
    "literature": MusicSettings(
        window=512,
        width=192,
        layers=6,
        heads=4,
        hidden=768,
        dropout=0.2,
        train_on_valid=True,
        training=TrainingSettings(
            steps=4_500,
            batch=8,
            learning_rate=2e-3,
            muon_learning_rate=3e-3,
            warmup=200,
            weight_decay=0.1,
            valid_every=250,
            checkpoint_every=250,
            averaging=0.999,
        ),
        compared=("absolute", "relative-logits"),
    ),
    # Five layers of width 512, as Huang et al. 2018 report for their relative model on these
    # chorales; heads, feed-forward width and budget are ours. For a GPU: an H100 that had other
    # work too took a minute for 1500 steps of a model, in bf16-mixed.
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
    presets: Mapping[str, SettingsT] = PRESETS,  # type: ignore[assignment]
    steps: int | None = None,
    batch: int | None = None,
    window: int | None = None,
    seed: int | None = None,
    max_distance: int | None = None,
    random_start: bool = False,
    train_on_valid: bool | None = None,
) -> SettingsT:
    """The settings of a name, some of them replaced.

    Args:
        name: one of the presets.
        presets: of the kind of music; by default those for chorales.
        steps: optimiser steps; None keeps the preset's, like the others.
        batch: sequences per step.
        window: tokens per sequence.
        seed: of everything random.
        max_distance: the farthest offset with a row of its own, in tokens.
        random_start: whether positions at the input begin anywhere in four windows in training.
        train_on_valid: whether the pieces that settings are chosen on are trained on too; None
            keeps the preset's.

    Raises:
        ValueError: if there is no such preset, or a number is out of range.

    >>> preset("tiny", steps=5).training.steps
    5
    """
    if name not in presets:
        raise ValueError(f"preset: name must be one of {', '.join(presets)}, got {name!r}")
    found = presets[name]
    given = {
        "window": window,
        "max_distance": max_distance,
        "random_start": random_start or None,
        "train_on_valid": train_on_valid,
    }
    return replace(
        found,
        training=with_budget(found.training, steps=steps, batch=batch, seed=seed),
        **{argument: value for argument, value in given.items() if value is not None},
    )
