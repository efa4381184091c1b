"""A trained model read back, with the tokens that are needed to use it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relpos.checks import check_count

from ..models.beam_search import BeamSearch
from ..models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from ..music.tokens import Vocabulary
from ..training.checkpoint import CheckpointError, load
from .kinds import CHORALES, TEXT
from .source import TranslationSource
from .subwords import Subwords

__all__ = ["TranslationModel", "check_source", "load_translation"]


@dataclass(frozen=True, eq=False)
class TranslationModel:
    """A model from a checkpoint, with what is needed to use it.

    Args:
        model: on the CPU, in evaluation mode.
        kind: of its pairs, `"text"` or `"chorales"`.
        vocabulary: its tokens: subwords, or those of chorales.
        languages: translated from, and to; none for chorales.
        about: what `model.json` says.
        folder: of the checkpoint.
    """

    model: EncoderDecoder
    kind: str
    vocabulary: Subwords | Vocabulary
    languages: tuple[str, ...]
    about: dict[str, Any]
    folder: Path

    @property
    def position(self) -> str:
        """The folder's name, which says the scheme and its clipping distance."""
        return self.folder.resolve().name

    def search(self, beam: int | None = None, alpha: float | None = None) -> tuple[int, float]:
        """Hypotheses and length penalty of a search with this model.

        Args:
            beam: hypotheses; None takes those of its comparison, or 4 where they are not known.
            alpha: of the length penalty; None takes that of its comparison, or 0.6.
        """
        compared = _compared(self.about)
        return (
            compared.beam if beam is None else beam,
            compared.alpha if alpha is None else alpha,
        )

    def of_text(self) -> Subwords:
        """The subwords of a model of sentences.

        Raises:
            CheckpointError: if it is one of chorales.
        """
        if not isinstance(self.vocabulary, Subwords):
            raise CheckpointError(f"{self.folder}: must be a model of text, got {self.kind}")
        return self.vocabulary

    def of_chorales(self) -> tuple[Vocabulary, int]:
        """The tokens of a model of chorales, and the window of its training.

        Raises:
            CheckpointError: if it is one of sentences.
        """
        if not isinstance(self.vocabulary, Vocabulary):
            raise CheckpointError(f"{self.folder}: must be a model of chorales, got {self.kind}")
        return self.vocabulary, self.about["settings"]["window"]


def load_translation(path: str | Path) -> TranslationModel:
    """The model that a training of this task left behind, of either kind of pairs.

    Args:
        path: its folder, or the `.safetensors` file in it.

    Raises:
        CheckpointError: if it is not a checkpoint of this task, or contradicts itself.
    """
    found = load(path, EncoderDecoder, task="translation")
    try:
        kind, vocabulary, languages = _described(found.about, found.model.config)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path}: is not a checkpoint of the translation task: {type(error).__name__} {error}"
        ) from error
    return TranslationModel(found.model, kind, vocabulary, languages, found.about, found.folder)


def check_source(trained: TranslationModel, source: TranslationSource, path: str | Path) -> None:
    """Refuse to measure a model on other pairs than those that were held out from it.

    Args:
        trained: the model.
        source: the pairs.
        path: of the checkpoint, for the message.

    Raises:
        CheckpointError: if the model was trained beside other pairs, or the other way round.
    """
    # The digest is of sources and targets: it knows the direction, too.
    about, digest = trained.about["data"], source.digest
    if about["digest"] != digest:
        languages = tuple(source.about().get("languages", ()))
        way_out = f"give it as --data PATH/{about['name']}"
        if languages and languages == trained.languages[::-1]:
            way_out = "give --source {} --target {}".format(*trained.languages)
        raise CheckpointError(
            f"{path}: was trained on the pairs of {about['name']} ({about['digest']})"
            f"{_direction(trained.languages)}, got {source.name} ({digest})"
            f"{_direction(languages)}; {way_out}"
        )


def _direction(languages: tuple[str, ...]) -> str:
    return f", {' to '.join(languages)}" if languages else ""


def _described(
    about: dict[str, Any], config: EncoderDecoderConfig
) -> tuple[str, Subwords | Vocabulary, tuple[str, ...]]:
    """Kind, vocabulary and languages, if `model.json` says nothing against the model."""
    data = about["data"]
    _compared(about)
    for name in ("kind", "name", "digest"):
        if not isinstance(data[name], str):
            raise ValueError(f"data.{name} must be text, got {data[name]!r}")
    if data["kind"] not in (TEXT, CHORALES):
        raise ValueError(f"data.kind must be {TEXT!r} or {CHORALES!r}, got {data['kind']!r}")
    if data["kind"] == CHORALES:
        name, vocabulary, languages = "vocabulary", Vocabulary(**data["vocabulary"]), ()
        check_count("load_translation", "settings.window", about["settings"]["window"], least=8)
    else:
        name, vocabulary = "subwords", Subwords.from_about(data["subwords"])
        languages = _languages(data["languages"])
        _check_settings(about["settings"])
    for side, size in (("source", config.source_vocabulary), ("target", config.target_vocabulary)):
        if size != vocabulary.size:
            raise ValueError(
                f"data.{name} must be the model's {size} tokens of the {side}, "
                f"got {vocabulary.size}"
            )
    return data["kind"], vocabulary, languages


def _compared(about: dict[str, Any]) -> BeamSearch:
    """The search of the model's comparison; runs of before say nothing of it."""
    return BeamSearch(end=None, **about.get("search", {}))


def _check_settings(settings: dict[str, Any]) -> None:
    """Raise unless they say which pairs a model of text was held out from."""
    by_length, most = settings["length_test"], settings["long_sentences"]
    if not isinstance(by_length, bool):
        raise ValueError(f"settings.length_test must be true or false, got {by_length!r}")
    if most is not None:
        check_count("load_translation", "settings.long_sentences", most)


def _languages(names: Any) -> tuple[str, str]:
    if not (
        isinstance(names, list) and len(names) == 2 and all(isinstance(one, str) for one in names)
    ):
        raise ValueError(f"data.languages must be two names, got {names!r}")
    return names[0], names[1]
