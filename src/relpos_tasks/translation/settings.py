"""Sizes and budgets of the encoder-decoders, by name: for sentences, and for chorales."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from ..training.settings import TrainingSettings, with_budget
from .subwords import SUBWORDS

__all__ = [
    "CHORALE_PRESETS",
    "PRESETS",
    "ChoraleSettings",
    "TextSettings",
    "TranslationSettings",
    "preset",
]

# Subwords of a sentence in the length test: one of ten words may have more of them than one of
# thirteen, and thirteen words are measured as longer than training.
_SHORT = 13

SettingsT = TypeVar("SettingsT", bound="TranslationSettings")


def _training() -> TrainingSettings:
    return TrainingSettings(
        steps=3000,
        batch=2048,
        learning_rate=4e-3,
        warmup=300,
        weight_decay=0.05,
        valid_every=300,
        checkpoint_every=100,
    )


@dataclass(frozen=True)
class TranslationSettings:
    """The model's sizes, what is compared, and the training.

    Args:
        width: of the residual streams.
        layers: of the encoder, and of the decoder.
        heads: per layer.
        hidden: width of the feed-forward layers.
        dropout: probability.
        label_smoothing: epsilon.
        beam: hypotheses of a search.
        training: how to train.
    """

    width: int = 128
    layers: int = 3
    heads: int = 4
    hidden: int = 256
    dropout: float = 0.1
    label_smoothing: float = 0.1
    beam: int = 4
    training: TrainingSettings = field(default_factory=_training)

    @property
    def longest_target(self) -> int:
        """Target tokens of the longest example in training."""
        raise NotImplementedError

    @property
    def step_tokens(self) -> int:
        """Tokens of a training step, of both sides together, at most."""
        raise NotImplementedError

    @property
    def shared_batch(self) -> int | None:
        """Examples of a step that devices share equally; None where batches are of tokens."""
        return None

    @property
    def compared(self) -> Sequence[str]:
        """The positions of a comparison where no others are asked for."""
        return ("sinusoidal", "shaw-16", "shaw-0")

    def recorded(self) -> dict[str, Any]:
        """What `model.json` says of the settings, beside the model's own; a run keeps to them."""
        return {"label_smoothing": self.label_smoothing, "training": asdict(self.training)}

    def search(self) -> dict[str, Any]:
        """How translations are searched for; no training depends on it."""
        return {"beam": self.beam}

    def with_seed(self: SettingsT, seed: int) -> SettingsT:
        """The same with another seed.

        Args:
            seed: of everything random.
        """
        return replace(self, training=replace(self.training, seed=seed))


@dataclass(frozen=True)
class TextSettings(TranslationSettings):
    """Of sentence pairs; the training's batch is counted in tokens, on either side.

    Args:
        vocabulary: how many subwords there may be.
        most_subwords: of a sentence to train on, outside the length test.
        alpha: of the length penalty of the search.
        length_test: whether to train on short sentences alone, and measure on longer ones too.
        long_sentences: the most of those to measure on.
    """

    vocabulary: int = SUBWORDS
    most_subwords: int = 60
    alpha: float = 0.6
    length_test: bool = False
    long_sentences: int = 1000

    @property
    def longest(self) -> int:
        """Subwords of a sentence to train on, at most; pairs with a longer one are left out.

        >>> TextSettings().longest, TextSettings(length_test=True).longest
        (60, 13)
        """
        return _SHORT if self.length_test else self.most_subwords

    @property
    def longest_target(self) -> int:
        """Target tokens of the longest sentence in training, its end counted."""
        return self.longest + 1

    @property
    def step_tokens(self) -> int:
        """As many on either side."""
        return 2 * self.training.batch

    @property
    def compared(self) -> Sequence[str]:
        """In the length test without k = 0, and with learned absolute positions."""
        return ("sinusoidal", "absolute", "shaw-16") if self.length_test else super().compared

    def recorded(self) -> dict[str, Any]:
        """What `model.json` says of the settings, beside the model's own."""
        return super().recorded() | {
            "longest": self.longest,
            "length_test": self.length_test,
            "long_sentences": self.long_sentences if self.length_test else None,
        }

    def search(self) -> dict[str, Any]:
        """How translations are searched for; no training depends on it."""
        return super().search() | {"alpha": self.alpha}


@dataclass(frozen=True)
class ChoraleSettings(TranslationSettings):
    """Of chorales, soprano in and three voices out; the training's batch is counted in crops.

    Args:
        window: tokens of all four voices in a crop, a multiple of 8.
    """

    window: int = 384

    @property
    def longest_target(self) -> int:
        """The three lower voices of a crop."""
        return self.window * 3 // 4

    @property
    def step_tokens(self) -> int:
        """All four voices."""
        return self.window * self.training.batch

    @property
    def shared_batch(self) -> int | None:
        """All crops."""
        return self.training.batch

    def recorded(self) -> dict[str, Any]:
        """What `model.json` says of the settings, beside the model's own."""
        return super().recorded() | {"window": self.window}


PRESETS = {
    # Sizes and budget for two cores, chosen on the fiftieth of Multi30k's train that is set aside,
    # and not on its val, which is held out here.
    "default": TextSettings(),
    # The whole job in two minutes, for trying out.
    "tiny": TextSettings(
        width=64,
        layers=2,
        heads=2,
        hidden=128,
        vocabulary=2_000,
        beam=2,
        training=replace(
            _training(), steps=300, batch=1024, learning_rate=4e-3, warmup=50, valid_every=100
        ),
    ),
    # The base model of Vaswani et al. (2017), as Shaw et al. (2018) compare it, and their 100,000
    # steps. For a GPU and a text of millions of pairs; nobody has run it yet.
    "paper": TextSettings(
        width=512,
        layers=6,
        heads=8,
        hidden=2048,
        vocabulary=32_000,
        most_subwords=250,
        training=replace(
            _training(),
            steps=100_000,
            batch=25_000,
            learning_rate=1e-3,
            warmup=4_000,
            valid_every=2_000,
            checkpoint_every=2_000,
        ),
    ),
}

CHORALE_PRESETS = {
    "default": ChoraleSettings(
        training=replace(
            _training(), steps=1200, batch=8, learning_rate=3e-3, warmup=100, valid_every=150
        ),
    ),
    # The whole job in a minute, for trying out and for CI.
    "tiny": ChoraleSettings(
        width=32,
        layers=2,
        heads=2,
        hidden=64,
        beam=2,
        window=128,
        training=replace(
            _training(),
            steps=120,
            batch=8,
            learning_rate=6e-3,
            warmup=20,
            valid_every=40,
            checkpoint_every=50,
        ),
    ),
}


def preset(
    name: str,
    *,
    presets: Mapping[str, SettingsT] = PRESETS,  # type: ignore[assignment]
    steps: int | None = None,
    batch: int | None = None,
    seed: int | None = None,
) -> SettingsT:
    """The settings of a name, some of them replaced.

    Args:
        name: one of the presets.
        presets: for what; by default those for sentences.
        steps: optimiser steps; None keeps the preset's, like the others.
        batch: tokens per step on either side, or crops of chorales.
        seed: of everything random.

    Raises:
        ValueError: if there is no such preset, or a number is out of range.

    >>> preset("tiny", steps=5).training.steps
    5
    """
    if name not in presets:
        raise ValueError(f"preset: name must be one of {', '.join(presets)}, got {name!r}")
    found = presets[name]
    return replace(found, training=with_budget(found.training, steps=steps, batch=batch, seed=seed))
