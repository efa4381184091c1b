"""One encoder-decoder trained on pairs of either kind."""

from __future__ import annotations

from pathlib import Path

import torch
from lightning.pytorch.utilities import rank_zero_only

from ..machine import versions
from ..models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from ..training.checkpoint import save_about, saved_about
from ..training.devices import Devices
from ..training.fitting import fit
from ..training.preflight import check_data, check_devices, check_folder, check_memory
from ..training.sequence_to_sequence import SequenceToSequenceTask
from ..training.trained import TrainedModel, trained_model
from .positions import position_options
from .settings import TranslationSettings
from .source import TranslationSource

__all__ = ["build", "check_training", "train_position"]


def check_training(
    position: str, settings: TranslationSettings, *, folder: Path, devices: Devices
) -> None:
    """Raise if `train_position` could not begin, without reading a pair.

    Args:
        position: as `position_options` takes it.
        settings: sizes and budget.
        folder: where the checkpoints are to go.
        devices: where to train.

    Raises:
        TrainingError: if a device is missing, a step does not fit the memory, or the folder holds
            a run that is at work or has other settings.
        ValueError: if there is no such position, or a file of the run cannot be written.
    """
    position_options(position)
    training = settings.training
    check_devices(devices, batch=settings.shared_batch, averaging=training.averaging)
    # What the backward pass of a block needs of a token: the inputs of its norms, queries, keys,
    # values and heads of two attentions, and the hidden layer on both sides of GELU.
    numbers = settings.layers * (11 * settings.width + 2 * settings.hidden)
    check_memory(
        settings.step_tokens * numbers,
        what=f"a step of {settings.step_tokens:,} tokens",
        way_out="a smaller --batch",
    )
    check_folder(folder, settings.recorded(), precision=devices.precision)


def train_position(
    position: str,
    settings: TranslationSettings,
    source: TranslationSource,
    *,
    folder: Path,
    devices: Devices,
) -> TrainedModel[EncoderDecoder]:
    """Train one model, or resume its training.

    Args:
        position: as `position_options` takes it.
        settings: sizes and budget.
        source: the pairs.
        folder: where the checkpoints go.
        devices: where to train.

    Raises:
        TrainingError: if the folder holds a run with other settings, or on other pairs.
    """
    check_data(folder, name=source.name, digest=source.digest)
    model = build(position, settings, source)
    task = SequenceToSequenceTask(
        model,
        settings.training,
        padding=source.padding,
        label_smoothing=settings.label_smoothing,
    )
    about = {
        "task": "translation",
        "model": model.config.to_dict(),
        "data": source.about(),
        "settings": settings.recorded(),
        "versions": versions(),
    }
    fit(task, source.data(settings), folder=folder, about=about, devices=devices, title=position)
    if not rank_zero_only.rank:
        _record_search(folder, settings)
    return trained_model(task, model)


def _record_search(folder: Path, settings: TranslationSettings) -> None:
    """Add to `model.json` how this model translates in a comparison.

    Behind the training, which compares what it finds there with its own: it may go on whatever the
    search is.
    """
    about = saved_about(folder)
    if about and about.get("search") != settings.search():
        save_about(folder, about | {"search": settings.search()})


def build(
    position: str, settings: TranslationSettings, source: TranslationSource
) -> EncoderDecoder:
    """A model before training; what two schemes share begins with the same numbers.

    Args:
        position: as `position_options` takes it.
        settings: sizes and seed.
        source: the vocabulary.

    Raises:
        ValueError: if there is no such position.
    """
    config = EncoderDecoderConfig(
        source.tokens,
        source.tokens,
        tied=source.tied,
        width=settings.width,
        layers=settings.layers,
        heads=settings.heads,
        hidden=settings.hidden,
        dropout=settings.dropout,
        max_length=settings.longest_target,
        **position_options(position),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.training.seed)
        return EncoderDecoder(config)
