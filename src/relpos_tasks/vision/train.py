"""One model trained on canvases of digits."""

from __future__ import annotations

from pathlib import Path

import torch

from ..machine import versions
from ..models.pixel_classifier import PixelClassifier, PixelClassifierConfig
from ..training.devices import Devices
from ..training.fitting import fit
from ..training.preflight import check_devices, check_folder, check_memory
from ..training.trained import TrainedModel, trained_model
from .canvas import TRAINING
from .data import CanvasData
from .digits import DigitSplit
from .settings import VisionSettings
from .task import PixelTask

__all__ = ["build", "check_training", "train_position"]


def check_training(
    position: str, settings: VisionSettings, *, folder: Path, devices: Devices
) -> None:
    """Raise if `train_position` could not begin, without reading an image.

    Args:
        position: a position of `PixelClassifierConfig`.
        settings: sizes and budget.
        folder: where the checkpoints are to go.
        devices: where to train.

    Raises:
        TrainingError: if a device is missing, a step does not fit the memory, or the folder holds
            a run that is at work or has other settings.
        ValueError: if the blocks know no such position, or a file of the run cannot be written.
    """
    _config(position, settings)
    batch, pixels = settings.training.batch, TRAINING.shape[0] * TRAINING.shape[1]
    check_devices(devices, batch=batch, averaging=settings.training.averaging)
    # An image and its labels, and what the backward pass of a block needs: the inputs of its
    # norms, queries, keys, values, heads, and the hidden layer on both sides of GELU.
    numbers = 6 + settings.layers * settings.width * (6 + 2 * 4)
    check_memory(
        batch * pixels * numbers,
        what=f"a step of {batch:,} canvases of {pixels} pixels",
        way_out="a smaller --batch",
    )
    check_folder(folder, settings.recorded(), precision=devices.precision)


def train_position(
    position: str,
    settings: VisionSettings,
    split: DigitSplit,
    *,
    folder: Path,
    devices: Devices,
) -> TrainedModel[PixelClassifier]:
    """Train one model, or resume its training.

    Args:
        position: a position of `PixelClassifierConfig`.
        settings: sizes and budget.
        split: the digits.
        folder: where the checkpoints go.
        devices: where to train.

    Raises:
        TrainingError: if the folder holds a run with other settings.
    """
    training = settings.training
    model = build(position, settings)
    task = PixelTask(model, training)
    data = CanvasData(
        split,
        batch=training.batch,
        steps=training.steps,
        seed=training.seed,
        watched=settings.watched,
    )
    about = {
        "task": "vision",
        "model": model.config.to_dict(),
        "data": split.about(),
        "settings": settings.recorded(),
        "measuring": {"canvases": settings.canvases},
        "versions": versions(),
    }
    fit(task, data, folder=folder, about=about, devices=devices, title=position)
    return trained_model(task, model)


def build(position: str, settings: VisionSettings) -> PixelClassifier:
    """A model before training; what two schemes share begins with the same numbers.

    Args:
        position: a position of `PixelClassifierConfig`.
        settings: sizes and seed.

    Raises:
        ValueError: if there is no such position.
    """
    config = _config(position, settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.training.seed)
        return PixelClassifier(config)


def _config(position: str, settings: VisionSettings) -> PixelClassifierConfig:
    return PixelClassifierConfig(
        width=settings.width,
        layers=settings.layers,
        heads=settings.heads,
        block=settings.block,
        position=position,
        shape=TRAINING.shape,
    )
