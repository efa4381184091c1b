"""The sentences of the report on chorales, made from its numbers."""

from __future__ import annotations

from .piece import Piece
from .results import ComparisonResults
from .settings import MusicSettings
from .source import EMBEDDED, Source

__all__ = [
    "LONG_NAMES",
    "SHORT_NAMES",
    "busy_note",
    "chorale_note",
    "curves_note",
    "lengths_note",
    "protocol",
    "summary",
    "verdict",
]

LONG_NAMES = {"huang": "relative (Huang et al. 2018)", "absolute": "absolute (learned)"}
SHORT_NAMES = {"huang": "relative", "absolute": "absolute"}


def summary(settings: MusicSettings, source: Source) -> str:
    """What was done, in three sentences.

    Args:
        settings: sizes and budget.
        source: the pieces.
    """
    pieces = (
        "the four-part chorales of Bach that ship with music21"
        if source.name == EMBEDDED
        else f"the chorales of {source.name}"
    )
    training = settings.training
    return (
        f"Two decoders of {settings.layers} layers and width {settings.width} learned "
        f"{pieces}, {len(source.split.train)} of them, token by token: one with the learned "
        "relative positions of the Music Transformer, one with learned absolute positions. "
        f"Both had the same {training.steps:,} steps of {training.batch} sequences of "
        f"{settings.window} tokens, in the same order and from the same seed. They were then "
        f"measured on {len(source.split.held_out)} pieces that neither had seen, and the relative "
        "one wrote a chorale of its own."
    )


def verdict(relative: float, absolute: float, counting: dict[str, float]) -> list[str]:
    """What the held-out numbers say, in sentences.

    Args:
        relative: nats per token of the relative model.
        absolute: nats per token of the absolute one.
        counting: nats per token of each baseline.

    >>> verdict(0.5, 0.6, {"previous pitch": 0.9})[1]
    'It beats the best counting baseline (previous pitch, 0.900) too.'
    """
    if relative < absolute:
        first = "The relative model beats the absolute one"
    elif relative > absolute:
        first = "The relative model does not beat the absolute one"
    else:
        first = "The relative and the absolute model are equal"
    sentences = [
        f"{first}: {relative:.3f} against {absolute:.3f} nats per token on held-out pieces."
    ]
    name, best = min(counting.items(), key=lambda item: item[1])
    if relative < best:
        sentences.append(f"It beats the best counting baseline ({name}, {best:.3f}) too.")
    else:
        sentences.append(
            f"It does not beat the best counting baseline ({name}, {best:.3f}): "
            "too little training, or a model too small."
        )
    return sentences


def busy_note(results: ComparisonResults) -> str:
    """Which times do not compare models, since the machine had other work; "" if they all do.

    Args:
        results: the numbers.
    """
    busy = {name: one.time for name, one in results.trained.items() if one.time.crowded}
    if not busy:
        return ""
    used = [
        f"{time.others:.1f} cores while the {SHORT_NAMES[name]} model was trained"
        for name, time in busy.items()
        if time.others is not None
    ]
    how_much = f": other programs used {' and '.join(used)}" if used else ""
    return f"* Measured on a busy machine{how_much}. Such a time does not compare models."


def chorale_note(chorale: Piece, settings: MusicSettings) -> str:
    """How the chorale came about.

    Args:
        chorale: the generated piece.
        settings: sizes and budget.
    """
    bars = chorale.steps // chorale.steps_per_bar
    return (
        f"{bars} bars, drawn from the relative model one token at a time, soprano, alto, tenor, "
        f"bass, sixteenth by sixteenth: {4 * chorale.steps:,} tokens from a model trained on "
        f"{settings.window}. Nothing was chosen among several tries."
    )


def lengths_note(settings: MusicSettings, source: Source, results: ComparisonResults) -> str:
    """On what the length test was made and what it showed, or why there is none.

    Args:
        settings: sizes and budget.
        source: the pieces.
        results: the numbers.
    """
    window, pieces = settings.window, results.long_pieces
    if not pieces:
        return (
            f"No held-out piece has the {4 * window:,} tokens of the longest window, so that the "
            "length test could not be made."
        )
    changes = {name: nats[max(nats)] - nats[min(nats)] for name, nats in results.lengths.items()}
    said = [
        f"the {SHORT_NAMES[name]} model {'loses' if change > 0 else 'gains'} {abs(change):.3f}"
        for name, change in changes.items()
    ]
    return (
        f"Both models were trained on {window:,} tokens and read windows of {window:,}, "
        f"{2 * window:,} and {4 * window:,} here, on the same tokens: those of the {pieces} of "
        f"{len(source.split.held_out)} held-out pieces that are as long as the longest window. "
        "Beyond the trained length the relative table repeats the row of its farthest offset, and "
        "the absolute one that of its last position. From the shortest to the longest, "
        f"{' and '.join(said)} nats per token."
    )


def curves_note(settings: MusicSettings, baseline: str) -> str:
    """How to read the learning curves.

    Args:
        settings: sizes and budget.
        baseline: the name of the best counting baseline.
    """
    changed = "transposed at random" + (" and with dropout" if settings.dropout else "")
    return (
        f"Thin lines: training batches, {changed}. Thick lines: the validation pieces. Dashed: the "
        f"best counting baseline ({baseline}) on the held-out pieces."
    )


def protocol(settings: MusicSettings, source: Source) -> list[str]:
    """How it was measured, as sentences.

    Args:
        settings: sizes and budget.
        source: the pieces.
    """
    onsets = (
        "A struck and a held note are different tokens."
        if source.vocabulary.onsets
        else "Pitches only: holds are not marked."
    )
    parts = (
        "pieces with the same music fall into the same part"
        if source.name == EMBEDDED
        else "the file's valid pieces are held out as they are, whether or not its train holds the "
        "same music"
    )
    return [
        "One token per voice and sixteenth, soprano, alto, tenor, bass, then the next sixteenth "
        f"({source.vocabulary.size} tokens in all). {onsets}",
        f"Pieces: {source.split}. The split is by piece and fixed; {parts}, "
        "and nothing was chosen by looking at the held-out ones.",
        f"Every token of every held-out piece is scored once, in windows of {settings.window} "
        f"tokens that slide by {settings.window // 2}; the begin token is not scored.",
        "Training pieces are transposed at random as far as each voice stays in its range.",
        "Counting baselines see the same tokens: each adds to the context of the one above it "
        "(Witten-Bell smoothing).",
    ]
