"""The sentences of the report on music of either kind, made from its numbers."""

from __future__ import annotations

from collections.abc import Mapping

from ..models.positions import POSITIONS
from ..report.wording import listed, training_notes
from .composer import Words
from .results import ComparisonResults
from .settings import MusicSettings
from .source import MusicSource

__all__ = ["composing_model", "curves_note", "lengths_note", "protocol", "summary", "verdict"]

_BEYOND_TABLES = "Beyond its last row a table repeats that row"
_BEYOND_LOGITS = ", but that of relative logits, which adds nothing there"


def summary(
    settings: MusicSettings, source: MusicSource, results: ComparisonResults, words: Words
) -> str:
    """What was done, in three sentences.

    Args:
        settings: sizes and budget.
        source: the music.
        results: the numbers.
        words: what things are called.
    """
    training, seeds = settings.training, len(results.seeds)
    again = "" if seeds == 1 else f", once for each of {seeds} seeds"
    return (
        f"Decoders of {settings.layers} layers and width {settings.width} learned {words.learned}, "
        f"{len(source.split.train)} of them, token by token{again}: they differ in their positions "
        f"alone ({listed([POSITIONS[name].title for name in results.trained])}). "
        f"All had the same {training.steps:,} steps of {training.batch} sequences of "
        f"{settings.window} tokens, in the same order and from the same first numbers. They were "
        f"then measured on {words.counted(results.pieces)} that none had seen, and one "
        f"of them {words.new}."
    )


def verdict(held_out: Mapping[str, float], counting: Mapping[str, float]) -> list[str]:
    """What the held-out numbers say, in sentences.

    Args:
        held_out: nats per token of each model by position, the mean over the seeds.
        counting: nats per token of each baseline.

    >>> verdict({"huang": 0.5, "absolute": 0.6}, {"previous pitch": 0.9})[0]
    'Best: Huang with 0.500 nats per token on held-out music, then learned absolute (0.600).'
    """
    ranked = sorted(held_out, key=held_out.__getitem__)
    best, others = ranked[0], ranked[1:]
    named = [f"{POSITIONS[name].title} ({held_out[name]:.3f})" for name in others]
    then = f", then {listed(named)}" if named else ""
    sentences = [
        f"Best: {POSITIONS[best].title} with {held_out[best]:.3f} nats per token on held-out "
        f"music{then}."
    ]
    name, lowest = min(counting.items(), key=lambda item: item[1])
    if held_out[best] < lowest:
        sentences.append(f"It beats the best counting baseline ({name}, {lowest:.3f}).")
    else:
        sentences.append(
            f"It does not beat the best counting baseline ({name}, {lowest:.3f}): "
            "too little training, or a model too small."
        )
    relative = {name for name in held_out if POSITIONS[name].relative}
    if relative and best not in relative:
        sentences.append("No relative positions beat it here.")
    return sentences


def lengths_note(settings: MusicSettings, results: ComparisonResults, words: Words) -> str:
    """On what the length test was made and what it showed, or why there is none.

    Args:
        settings: sizes and budget.
        results: the numbers.
        words: what things are called.
    """
    window, pieces = settings.window, results.long_pieces
    if not pieces:
        return (
            f"None of the held-out {words.works} has the {4 * window:,} tokens of the longest "
            "window, so that the length test could not be made."
        )
    changes = {n: nats[max(nats)] - nats[min(nats)] for n, nats in results.mean_lengths.items()}
    said = [
        f"{POSITIONS[name].title} {'loses' if change > 0 else 'gains'} {abs(change):.3f}"
        for name, change in changes.items()
    ]
    beyond = _BEYOND_TABLES + _BEYOND_LOGITS * ("relative-logits" in results.trained)
    return (
        f"All models were trained on {window:,} tokens and read windows of {window:,}, "
        f"{2 * window:,} and {4 * window:,} here, on the same tokens: those of the held-out "
        f"{words.works} that are as long as the longest window, {pieces} of {results.pieces}. "
        f"{beyond}. From the shortest window to the longest, {listed(said)} nats per token."
    )


def composing_model(settings: MusicSettings, works: str) -> str:
    """Which of the compared models composes, in words.

    Args:
        settings: of the comparison.
        works: what the music consists of, such as `"pieces"`.
    """
    if settings.train_on_valid:
        # How well they do on what they were trained on says nothing of what they would write.
        return "the last of the models compared"
    return f"the model that was best on the validation {works}"


def curves_note(settings: MusicSettings, baseline: str, words: Words) -> str:
    """How to read the learning curves.

    Args:
        settings: sizes and budget.
        baseline: the name of the best counting baseline.
        words: what things are called.
    """
    changed = words.changed + (" and with dropout" if settings.dropout else "")
    too = ", which were trained on too" if settings.train_on_valid else ""
    return (
        f"Thin lines: training batches, {changed}. Thick lines: the validation {words.works}{too}. "
        f"Dash and dot: the best counting baseline ({baseline}) on the held-out {words.works}."
    )


def protocol(settings: MusicSettings, words: Words) -> list[str]:
    """How it was measured, as sentences.

    Args:
        settings: sizes and budget.
        words: what is said of this kind of music.
    """
    choices = [] if settings.max_distance is None else [
        f"Tables of relative positions have rows for offsets up to {settings.max_distance} alone."
    ]  # fmt: skip
    if settings.random_start:
        choices.append(
            "Absolute positions begin anywhere in four windows while the models are trained."
        )
    if settings.train_on_valid:
        choices.append(
            f"Settings were chosen on the validation {words.works}, which these models were then "
            "trained on too."
        )
    return [
        *words.protocol,
        *choices,
        *training_notes(settings.training),
        "Counting baselines see the same tokens: each adds to the context of the one above it "
        "(Witten-Bell smoothing).",
    ]
