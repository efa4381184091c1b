"""A trained model read back, with the tokens and ranges that are needed to use it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int16
from numpy import ndarray

from relpos.checks import check_count

from ..models.decoder import DecoderConfig, DecoderLM
from ..training.checkpoint import CheckpointError, load
from .piece import VOICES
from .source import EMBEDDED, Source
from .tokens import Vocabulary

__all__ = ["MusicModel", "check_source", "load_music"]


@dataclass(frozen=True, eq=False)
class MusicModel:
    """A model from a checkpoint, with what is needed to use it."""

    model: DecoderLM
    vocabulary: Vocabulary
    ranges: Int16[ndarray, "4 2"]
    window: int
    about: dict[str, Any]
    folder: Path


def load_music(path: str | Path) -> MusicModel:
    """The model that `train_position` left behind.

    Args:
        path: its folder, or the `.safetensors` file in it.

    Raises:
        CheckpointError: if it is not a checkpoint of this task, or contradicts itself.
    """
    found = load(path, DecoderLM)
    try:
        vocabulary, ranges = _described(found.about, found.model.config)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path}: is not a checkpoint of the music task: {type(error).__name__} {error}"
        ) from error
    window = found.about["settings"]["window"]
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
    name, digest = music.about["data"]["name"], music.about["data"]["digest"]
    if digest != source.digest:
        way_out = "leave --data out" if name == EMBEDDED else f"give it as --data PATH/{name}"
        raise CheckpointError(
            f"{path}: was trained on the pieces of {name} ({digest}), "
            f"got {source.name} ({source.digest}); {way_out}"
        )


def _described(
    about: dict[str, Any], config: DecoderConfig
) -> tuple[Vocabulary, Int16[ndarray, "4 2"]]:
    """The vocabulary and the voices' ranges, if `model.json` says nothing against the model."""
    data, window = about["data"], about["settings"]["window"]
    vocabulary = Vocabulary(**data["vocabulary"])
    if vocabulary.size != config.vocabulary:
        raise ValueError(
            f"data.vocabulary must stand for the model's {config.vocabulary} tokens, "
            f"got {vocabulary.size}"
        )
    # A model has as many positions as its training sequences had tokens, or more.
    if check_count("load_music", "settings.window", window, least=8) > config.max_length:
        raise ValueError(
            f"settings.window must be at most the model's {config.max_length} tokens, got {window}"
        )
    for name in ("name", "digest"):
        if not isinstance(data[name], str):
            raise ValueError(f"data.{name} must be text, got {data[name]!r}")
    ranges = np.array(data["ranges"])
    if ranges.shape != (len(VOICES), 2) or ranges.dtype.kind != "i":
        raise ValueError(f"data.ranges must be two pitches per voice, got {data['ranges']}")
    lowest, highest = ranges.T
    inside = (vocabulary.lowest <= lowest) & (lowest <= highest) & (highest <= vocabulary.highest)
    if not inside.all():
        raise ValueError(
            f"data.ranges must rise within {vocabulary.lowest}..{vocabulary.highest}, "
            f"got {ranges.tolist()}"
        )
    return vocabulary, ranges.astype(np.int16)
