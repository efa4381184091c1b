"""One model trained on music of either kind."""

from __future__ import annotations

from pathlib import Path

import torch

from ..machine import versions
from ..models.decoder import DecoderConfig, DecoderLM
from ..training.devices import Devices
from ..training.fitting import fit
from ..training.language_model import LanguageModelTask
from ..training.preflight import check_devices, check_folder, check_memory
from ..training.trained import TrainedModel, trained_model
from .performances.tokens import EventVocabulary
from .settings import MusicSettings
from .source import MusicSource
from .tokens import Vocabulary

__all__ = ["build", "check_training", "train_position"]

# How many windows the positions at the input fill, where training begins anywhere in them.
_STARTS = 4


def check_training(settings: MusicSettings, *, folder: Path, devices: Devices) -> None:
    """Raise if `train_position` could not begin, without reading a piece.

    Args:
        settings: sizes and budget.
        folder: where the checkpoints are to go.
        devices: where to train.

    Raises:
        TrainingError: if a device is missing, a step does not fit the memory, or the folder holds
            a run that is at work or has other settings.
        ValueError: if a file of the run cannot be written.
    """
    batch, window = settings.training.batch, settings.window
    check_devices(devices, batch=batch, averaging=settings.training.averaging)
    # A token and its target in 8 bytes each, and what the backward pass of a block needs: the
    # inputs of its norms, queries, keys, values, heads, and the hidden layer on both sides of GELU.
    numbers = 8 + settings.layers * (6 * settings.width + 2 * settings.hidden)
    check_memory(
        batch * window * numbers,
        what=f"a step of {batch:,} sequences of {window:,} tokens",
        way_out="a smaller --batch or --window",
    )
    check_folder(folder, settings.recorded(), precision=devices.precision)


def train_position(
    position: str,
    settings: MusicSettings,
    source: MusicSource,
    *,
    folder: Path,
    devices: Devices,
) -> TrainedModel[DecoderLM]:
    """Train one model, or resume its training.

    Args:
        position: a name in `models.POSITIONS`.
        settings: sizes and budget.
        source: the music.
        folder: where the checkpoints go.
        devices: where to train.

    Raises:
        TrainingError: if the folder holds a run with other settings.
    """
    training = settings.training
    model = build(position, settings, source.vocabulary)
    task = LanguageModelTask(model, training)
    about = {
        "task": "music",
        "model": model.config.to_dict(),
        "data": source.about(),
        "settings": settings.recorded(),
        "versions": versions(),
    }
    fit(task, source.data(settings), folder=folder, about=about, devices=devices, title=position)
    return trained_model(task, model)


def build(
    position: str, settings: MusicSettings, vocabulary: Vocabulary | EventVocabulary
) -> DecoderLM:
    """A model before training; what two schemes share begins with the same numbers.

    Args:
        position: a name in `models.POSITIONS`.
        settings: sizes and seed.
        vocabulary: the tokens.

    Raises:
        ValueError: if there is no such position.
    """
    config = _config(position, settings, vocabulary)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.training.seed)
        return DecoderLM(config)


def _config(
    position: str, settings: MusicSettings, vocabulary: Vocabulary | EventVocabulary
) -> DecoderConfig:
    return DecoderConfig(
        vocabulary=vocabulary.size,
        width=settings.width,
        layers=settings.layers,
        heads=settings.heads,
        hidden=settings.hidden,
        dropout=settings.dropout,
        position=position,
        max_length=settings.window * (_STARTS if settings.random_start else 1),
        max_distance=settings.max_distance,
        random_start=settings.random_start,
    )
