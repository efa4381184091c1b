"""A trained model read back, with the subwords that are needed to use it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from ..training.checkpoint import CheckpointError, load
from .source import Source
from .subwords import Subwords

__all__ = ["TranslationModel", "check_source", "load_translation"]


@dataclass(frozen=True, eq=False)
class TranslationModel:
    """A model from a checkpoint, with what is needed to use it."""

    model: EncoderDecoder
    subwords: Subwords
    languages: tuple[str, str]
    about: dict[str, Any]
    folder: Path


def load_translation(path: str | Path) -> TranslationModel:
    """The model that a training of this task left behind.

    Args:
        path: its folder, or the `.safetensors` file in it.

    Raises:
        CheckpointError: if it is not a checkpoint of this task, or contradicts itself.
    """
    found = load(path, EncoderDecoder)
    try:
        subwords, languages = _described(found.about, found.model.config)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path}: is not a checkpoint of the translation task: {type(error).__name__} {error}"
        ) from error
    return TranslationModel(found.model, subwords, languages, found.about, found.folder)


def check_source(trained: TranslationModel, source: Source, path: str | Path) -> None:
    """Refuse to measure a model on other pairs than those that were held out from it.

    Args:
        trained: the model.
        source: the pairs.
        path: of the checkpoint, for the message.

    Raises:
        CheckpointError: if the model was trained beside other pairs, or the other way round.
    """
    name, digest = trained.about["data"]["name"], trained.about["data"]["digest"]
    # The digest is of sources and targets: it knows the direction, too.
    if digest != source.digest:
        raise CheckpointError(
            f"{path}: was trained on the pairs of {name} ({digest}), "
            f"{' to '.join(trained.languages)}, got {source.name} ({source.digest}), "
            f"{' to '.join(source.languages)}; give it as --data PATH/{name}"
        )


def _described(
    about: dict[str, Any], config: EncoderDecoderConfig
) -> tuple[Subwords, tuple[str, str]]:
    """The subwords and the languages, if `model.json` says nothing against the model."""
    data = about["data"]
    subwords = Subwords.from_about(data["subwords"])
    for side, size in (("source", config.source_vocabulary), ("target", config.target_vocabulary)):
        if size != subwords.size:
            raise ValueError(
                f"data.subwords must be the model's {size} tokens of the {side}, "
                f"got {subwords.size}"
            )
    languages = data["languages"]
    if not (
        isinstance(languages, list)
        and len(languages) == 2
        and all(isinstance(one, str) for one in languages)
    ):
        raise ValueError(f"data.languages must be two names, got {languages!r}")
    for name in ("name", "digest"):
        if not isinstance(data[name], str):
            raise ValueError(f"data.{name} must be text, got {data[name]!r}")
    return subwords, (languages[0], languages[1])
