"""Every position scheme in training: the model, the sizes and made-up batches of each task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from relpos_tasks.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from relpos_tasks.models.positions import POSITIONS
from relpos_tasks.music import settings as music_settings
from relpos_tasks.music.tokens import Vocabulary
from relpos_tasks.music.train import build as build_decoder
from relpos_tasks.training.language_model import LanguageModelTask
from relpos_tasks.training.sequence_to_sequence import SequenceToSequenceTask
from relpos_tasks.training.task import Task
from relpos_tasks.translation.batches import EncodedPairs, ShuffledBatches
from relpos_tasks.translation.positions import NAMES, position_options
from relpos_tasks.translation.settings import preset as translation_preset
from relpos_tasks.vision import settings as vision_settings
from relpos_tasks.vision.canvas import TRAINING
from relpos_tasks.vision.task import PixelTask
from relpos_tasks.vision.train import build as build_classifier

__all__ = ["NONE", "PRESETS", "TRAINING_JOBS", "TrainingJob"]

# The scheme with which the others are compared.
NONE = "none"
PRESETS = ("default", "tiny")

# Of the made-up sentences: how many pairs, and tokens on the mean.
_PAIRS, _MEAN_TOKENS = 4000, 15
_MIN_TOKENS, _MAX_TOKENS = 3, 60
# Padding, begin and end.
_SPECIAL = 3


@dataclass(frozen=True)
class TrainingJob:
    """A task at the sizes at which its schemes are timed.

    Args:
        schemes: names, `NONE` among them.
        batch: what a batch holds, in words.
        task: a scheme's untrained model, as it is trained.
        batches: so many batches, always the same ones.
    """

    schemes: Sequence[str]
    batch: str
    task: Callable[[str], Task]
    batches: Callable[[int], list[Any]]


def _music(preset: str) -> TrainingJob:
    settings = music_settings.preset(preset)
    vocabulary = Vocabulary(lowest=36, highest=81)
    shape = (settings.training.batch, settings.window + 1)

    def batches(count: int) -> list[Any]:
        draw = torch.Generator().manual_seed(0)
        drawn = (torch.randint(vocabulary.size, shape, generator=draw) for _ in range(count))
        return [(tokens[:, :-1], tokens[:, 1:]) for tokens in drawn]

    return TrainingJob(
        list(POSITIONS),
        f"{shape[0]} sequences of {settings.window} tokens",
        lambda scheme: LanguageModelTask(
            build_decoder(scheme, settings, vocabulary), settings.training
        ),
        batches,
    )


def _vision(preset: str) -> TrainingJob:
    settings = vision_settings.preset(preset)
    shape = (settings.training.batch, *TRAINING.shape)

    def batches(count: int) -> list[Any]:
        draw = torch.Generator().manual_seed(0)
        return [
            (torch.rand(shape, generator=draw), torch.randint(10, shape, generator=draw))
            for _ in range(count)
        ]

    return TrainingJob(
        settings.positions,
        f"{shape[0]} canvases of {shape[1]} x {shape[2]}",
        lambda scheme: PixelTask(build_classifier(scheme, settings), settings.training),
        batches,
    )


def _translation(preset: str) -> TrainingJob:
    settings = translation_preset(preset)
    vocabulary, tokens = settings.vocabulary, settings.training.batch

    def task(scheme: str) -> Task:
        config = EncoderDecoderConfig(
            vocabulary,
            vocabulary,
            width=settings.width,
            layers=settings.layers,
            heads=settings.heads,
            hidden=settings.hidden,
            dropout=settings.dropout,
            max_length=settings.longest_target,
            **position_options(scheme),
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return SequenceToSequenceTask(EncoderDecoder(config), settings.training)

    def batches(count: int) -> list[Any]:
        shuffled = ShuffledBatches(_pairs(vocabulary), tokens=tokens, steps=count, seed=0)
        return [shuffled.at(step) for step in range(count)]

    return TrainingJob(
        # Shaw's also with the clipping distances that translation compares.
        [*NAMES, "shaw-16", "shaw-0"],
        f"at most {tokens:,} tokens on either side, in sentences of about {_MEAN_TOKENS}",
        task,
        batches,
    )


def _pairs(vocabulary: int) -> EncodedPairs:
    """Pairs of random sentences whose lengths are spread and alike as those of a translation."""
    rng = np.random.default_rng(0)

    def sentences(lengths: np.ndarray) -> list[list[int]]:
        lengths = lengths.clip(_MIN_TOKENS, _MAX_TOKENS)
        return [rng.integers(_SPECIAL, vocabulary, size=int(n)).tolist() for n in lengths]

    lengths = rng.poisson(_MEAN_TOKENS, _PAIRS)
    sources = sentences(lengths)
    targets = sentences(lengths + rng.integers(-2, 3, _PAIRS))
    return EncodedPairs(sources, targets)


# By task, then by preset.
TRAINING_JOBS: dict[str, Callable[[str], TrainingJob]] = {
    "music": _music,
    "vision": _vision,
    "translation": _translation,
}
