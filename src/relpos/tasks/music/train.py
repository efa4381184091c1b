"""One model trained on chorales, and read back from its checkpoint."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...models.decoder import DecoderConfig, DecoderLM
from ..checkpoint import Checkpoint, CheckpointError, load, versions
from ..fitting import Devices, fit
from ..training import Curves, LanguageModelTask
from .data import ChoraleData
from .settings import MusicSettings
from .source import EMBEDDED, Source
from .tokens import Vocabulary

__all__ = ["MusicModel", "Trained", "build", "check_source", "load_music", "train_position"]


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained model and how the training went.

    Args:
        model: on the CPU, in evaluation mode.
        curves: `(step, nats per token)` for `"train"` and `"valid"`.
        seconds: of training.
        parameters: how many numbers were learned.
    """

    model: DecoderLM
    curves: Curves
    seconds: float
    parameters: int


@dataclass(frozen=True, eq=False)
class MusicModel:
    """A model from a checkpoint, with what is needed to use it."""

    model: DecoderLM
    vocabulary: Vocabulary
    ranges: np.ndarray
    window: int
    about: dict[str, Any]
    folder: Path


def train_position(
    position: str,
    settings: MusicSettings,
    source: Source,
    *,
    folder: Path,
    devices: Devices,
) -> Trained:
    """Train one model, or go on with its training.

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
    return Trained(model, task.curves, task.seconds, parameters)


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


def load_music(path: str | Path) -> MusicModel:
    """The model that `train_position` left behind.

    Args:
        path: its folder, or the `.safetensors` file in it.

    Raises:
        CheckpointError: if it is not a checkpoint of this task.
    """
    found: Checkpoint = load(path)
    try:
        data, settings = found.about["data"], found.about["settings"]
        vocabulary = Vocabulary(**data["vocabulary"])
        ranges = np.array(data["ranges"], np.int16).reshape(4, 2)
        window = int(settings["window"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path}: is not a checkpoint of the music task: {type(error).__name__} {error}"
        ) from error
    return MusicModel(found.model, vocabulary, ranges, window, found.about, found.folder)


def check_source(music: MusicModel, source: Source, path: str | Path) -> None:
    """Refuse to measure a model on other pieces than those that were held out from it.

    Args:
        music: the model.
        source: the pieces.
        path: of the checkpoint, for the message.

    Raises:
        CheckpointError: if the model was trained on other pieces.
    """
    name, digest = music.about["data"].get("name"), music.about["data"].get("digest")
    if digest != source.digest:
        way_out = "leave --data out" if name == EMBEDDED else f"give it as --data PATH/{name}"
        raise CheckpointError(
            f"{path}: was trained on the pieces of {name} ({digest}), "
            f"got {source.name} ({source.digest}); {way_out}"
        )


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
