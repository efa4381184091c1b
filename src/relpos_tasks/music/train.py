"""One model trained on chorales."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import torch

from ..machine import versions
from ..models.decoder import DecoderConfig, DecoderLM
from ..training.fitting import Devices, fit
from ..training.language_model import LanguageModelTask
from .data import ChoraleData
from .results import TrainedModel
from .settings import MusicSettings
from .source import Source
from .tokens import Vocabulary

__all__ = ["build", "train_position"]


def train_position(
    position: str,
    settings: MusicSettings,
    source: Source,
    *,
    folder: Path,
    devices: Devices,
) -> TrainedModel:
    """Train one model, or resume its training.

    Args:
        position: a position of `DecoderConfig`.
        settings: sizes and budget.
        source: the pieces.
        folder: where the checkpoints go.
        devices: where to train.

    Raises:
        TrainingError: if the folder holds a run with other settings.
    """
    training = settings.training
    model = build(position, settings, source.vocabulary)
    task = LanguageModelTask(model, training)
    data = ChoraleData(
        source.split,
        source.vocabulary,
        window=settings.window,
        batch=training.batch,
        steps=training.steps,
        seed=training.seed,
    )
    about = {
        "task": "music",
        "model": model.config.to_dict(),
        "data": source.about(),
        "settings": {"window": settings.window, "training": asdict(training)},
        "versions": versions(),
    }
    fit(task, data, folder=folder, about=about, devices=devices, title=position)
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return TrainedModel(model, task.curves, task.clock.time, parameters)


def build(position: str, settings: MusicSettings, vocabulary: Vocabulary) -> DecoderLM:
    """A model before training; what two schemes share begins with the same numbers.

    Args:
        position: a position of `DecoderConfig`.
        settings: sizes and seed.
        vocabulary: the tokens.

    Raises:
        ValueError: if there is no such position.
    """
    config = _config(position, settings, vocabulary)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.training.seed)
        return DecoderLM(config)


def _config(position: str, settings: MusicSettings, vocabulary: Vocabulary) -> DecoderConfig:
    return DecoderConfig(
        vocabulary=vocabulary.size,
        width=settings.width,
        layers=settings.layers,
        heads=settings.heads,
        hidden=settings.hidden,
        dropout=settings.dropout,
        position=position,
        max_length=settings.window,
    )
