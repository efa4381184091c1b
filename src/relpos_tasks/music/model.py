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
from .kinds import CHORALES, PERFORMANCES
from .performances.tokens import EventVocabulary
from .piece import VOICES
from .source import EMBEDDED, MusicSource, read_source
from .tokens import Vocabulary

__all__ = ["MusicModel", "check_source", "load_music", "source_of", "trains_on_valid"]


@dataclass(frozen=True, eq=False)
class MusicModel:
    """A model from a checkpoint, with what is needed to use it.

    Args:
        model: on the CPU, in evaluation mode.
        kind: of its music, `"chorales"` or `"performances"`.
        vocabulary: its tokens.
        ranges: lowest and highest pitch of each voice of chorales; None for performances.
        window: tokens in a training sequence.
        about: what `model.json` says.
        folder: of the checkpoint.
    """

    model: DecoderLM
    kind: str
    vocabulary: Vocabulary | EventVocabulary
    ranges: Int16[ndarray, "4 2"] | None
    window: int
    about: dict[str, Any]
    folder: Path

    def of_chorales(self) -> tuple[Vocabulary, Int16[ndarray, "4 2"]]:
        """Tokens and ranges of a model of chorales.

        Raises:
            CheckpointError: if it is one of performances.
        """
        if isinstance(self.vocabulary, EventVocabulary) or self.ranges is None:
            raise CheckpointError(f"{self.folder}: must be a model of chorales, got {self.kind}")
        return self.vocabulary, self.ranges


def load_music(path: str | Path) -> MusicModel:
    """The model that `train_position` left behind, of either kind of music.

    Args:
        path: its folder, or the `.safetensors` file in it.

    Raises:
        CheckpointError: if it is not a checkpoint of this task, or contradicts itself.
    """
    found = load(path, DecoderLM, task="music")
    try:
        kind, vocabulary, ranges = _described(found.about, found.model.config)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path}: is not a checkpoint of the music task: {type(error).__name__} {error}"
        ) from error
    window = found.about["settings"]["window"]
    return MusicModel(found.model, kind, vocabulary, ranges, window, found.about, found.folder)


def trains_on_valid(music: MusicModel) -> bool:
    """Whether a model was trained on the validation works too.

    Args:
        music: the model.
    """
    return music.about["settings"].get("train_on_valid", False)


def source_of(
    music: MusicModel, data: str | Path | None, path: str | Path, *, progress: bool = False
) -> MusicSource:
    """The music that a model was trained beside, split as it was then.

    Args:
        music: the model.
        data: of `read_source`.
        path: of the checkpoint, for messages.
        progress: True shows a progress bar while scores or MIDI files are read.

    Raises:
        ScoreError: if the data cannot be used.
        CheckpointError: if the model was trained on other music.
    """
    source = read_source(data, train_on_valid=trains_on_valid(music), progress=progress)
    check_source(music, source, path)
    return source


def check_source(music: MusicModel, source: MusicSource, path: str | Path) -> None:
    """Refuse to measure a model on other music than what was held out from it.

    Args:
        music: the model.
        source: the music.
        path: of the checkpoint, for the message.

    Raises:
        CheckpointError: if the model was trained on other music.
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
) -> tuple[str, Vocabulary | EventVocabulary, Int16[ndarray, "4 2"] | None]:
    """Kind, vocabulary and voices' ranges, if `model.json` says nothing against the model."""
    data, window = about["data"], about["settings"]["window"]
    kind = data["kind"]
    if kind not in (CHORALES, PERFORMANCES):
        raise ValueError(f"data.kind must be {CHORALES!r} or {PERFORMANCES!r}, got {kind!r}")
    vocabulary = EventVocabulary() if kind == PERFORMANCES else Vocabulary(**data["vocabulary"])
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
    both = about["settings"].get("train_on_valid", False)
    if not isinstance(both, bool):
        raise ValueError(f"settings.train_on_valid must be true or false, got {both!r}")
    for name in ("name", "digest"):
        if not isinstance(data[name], str):
            raise ValueError(f"data.{name} must be text, got {data[name]!r}")
    if isinstance(vocabulary, EventVocabulary):
        return kind, vocabulary, None
    return kind, vocabulary, _ranges(data, vocabulary)


def _ranges(data: dict[str, Any], vocabulary: Vocabulary) -> Int16[ndarray, "4 2"]:
    """The voices' ranges, if they lie within the vocabulary."""
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
    return ranges.astype(np.int16)
