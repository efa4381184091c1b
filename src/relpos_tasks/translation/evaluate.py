"""A trained model measured on the pairs that were held out from it."""

from __future__ import annotations

from pathlib import Path

from ..progress import show_progress
from ..training.sequence_to_sequence import mean_nats
from .chorales import read_chorales
from .model import TranslationModel, check_source
from .scores import SystemScores, score_system
from .settings import ChoraleSettings, TextSettings
from .source import read_source
from .texts import TextError
from .translate import translate

__all__ = ["evaluate_chorales", "evaluate_text"]


def evaluate_text(
    trained: TranslationModel,
    data: Path | None,
    *,
    source: str | None = None,
    target: str | None = None,
    beam: int | None = None,
    alpha: float | None = None,
    path: str | Path,
    valid: bool = False,
) -> tuple[float, SystemScores]:
    """Nats per target token, and what the translations are worth.

    Args:
        trained: a model of text.
        data: the pairs; None is refused with the words that say which they are.
        source: the language to translate from; None finds it.
        target: the language to translate to; None finds it.
        beam: hypotheses of the search; None as `TranslationModel.search` has it.
        alpha: of the length penalty; None likewise.
        path: of the checkpoint, for messages.
        valid: whether to measure on the validation pairs, in place of the held-out ones.

    Raises:
        TextError: if the text cannot be used.
        CheckpointError: if these are not the pairs that the model was trained beside.
    """
    subwords, settings = trained.of_text(), trained.about["settings"]
    beam, alpha = trained.search(beam, alpha)
    if data is None:
        name = trained.about["data"]["name"]
        raise TextError(
            f"--data: must name the pairs of {name}, beside which {path} was trained, got none; "
            f"give it as --data PATH/{name}"
        )
    pairs = read_source(
        data,
        source=source,
        target=target,
        subwords=subwords,
        by_length=settings["length_test"],
        largest=settings["long_sentences"],
    )
    check_source(trained, pairs, path)
    sizes = TextSettings()
    batches = pairs.valid(sizes) if valid else pairs.held_out(sizes)
    nats = mean_nats(trained.model, batches, padding=pairs.padding)
    measured = pairs.split.valid if valid else pairs.split.held_out
    with show_progress("translating", len(measured), "sentences") as progress:
        translations = translate(
            trained.model,
            subwords,
            [pair.source for pair in measured],
            beam=beam,
            alpha=alpha,
            progress=progress,
        )
    return nats, score_system(translations, [pair.target for pair in measured])


def evaluate_chorales(trained: TranslationModel, *, path: str | Path, valid: bool = False) -> float:
    """Nats per token of the three lower voices.

    Args:
        trained: a model of chorales.
        path: of the checkpoint, for messages.
        valid: whether to measure on the validation pieces, in place of the held-out ones.

    Raises:
        CheckpointError: if it was trained beside other chorales.
    """
    _, window = trained.of_chorales()
    chorales = read_chorales()
    check_source(trained, chorales, path)
    sizes = ChoraleSettings(window=window)
    batches = chorales.valid(sizes) if valid else chorales.held_out(sizes)
    return mean_nats(trained.model, batches, padding=chorales.padding)
