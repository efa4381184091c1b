"""The sentences of the page on harmonised chorales, made from its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..report.wording import listed, seeds_note, training_notes
from .chorales import ChoraleSource
from .positions import is_relative, title_of, titles_of
from .results import ComparisonResults
from .settings import ChoraleSettings

__all__ = ["protocol", "summary", "verdict"]


def summary(settings: ChoraleSettings, source: ChoraleSource, results: ComparisonResults) -> str:
    """What was done, in three sentences.

    Args:
        settings: sizes and budget.
        source: the chorales.
        results: the numbers.
    """
    training, split = settings.training, source.split
    seeds = "" if len(results.seeds) == 1 else f", once for each of {len(results.seeds)} seeds"
    return (
        f"Encoder-decoders of {settings.layers} + {settings.layers} layers and width "
        f"{settings.width} learned to put alto, tenor and bass below a soprano, from "
        f"{len(split.train)} four-part chorales of Bach{seeds}: they differ in their positions "
        f"alone ({titles_of(results.trained)}). All had the same "
        f"{training.steps:,} steps of {training.batch} crops of {settings.window} tokens, in the "
        "same order and from the same first numbers. They were then measured on "
        f"{len(split.held_out)} pieces that none had seen, and one of them harmonised a soprano of "
        "these."
    )


def verdict(mean: Mapping[str, float], seeds: Sequence[int]) -> list[str]:
    """What the held-out numbers say, in sentences.

    Args:
        mean: nats per target token by position, the mean over the seeds.
        seeds: of the trainings.

    >>> verdict({"absolute": 0.7, "shaw-16": 0.6}, [0, 1])
    ['Best: Shaw, k = 16 with 0.600 nats per token of the lower voices, then learned absolute \
(0.700).']
    """
    ranked = sorted(mean, key=mean.__getitem__)
    best, others = ranked[0], ranked[1:]
    named = listed([f"{title_of(name)} ({mean[name]:.3f})" for name in others])
    sentences = [
        f"Best: {title_of(best)} with {mean[best]:.3f} nats per token of the lower voices"
        f"{f', then {named}' if named else ''}."
    ]
    if any(map(is_relative, ranked)) and not is_relative(best):
        sentences.append("No relative positions beat it here.")
    if len(seeds) == 1 and others:
        sentences.append(seeds_note(1))
    return sentences


def protocol(settings: ChoraleSettings, source: ChoraleSource) -> list[str]:
    """How it was measured, as sentences.

    Args:
        settings: sizes and budget.
        source: the chorales.
    """
    window = settings.window
    return [
        "The encoder reads the soprano, one token for each sixteenth; the decoder writes alto, "
        "tenor and bass of the first sixteenth, then of the next "
        f"({source.vocabulary.size} tokens in all). A struck and a held note are different tokens.",
        f"Pieces: {source.split}, all four voices counted. The split is by piece and fixed; pieces "
        "with the same music fall into the same part, and nothing was chosen by looking at the "
        "held-out ones.",
        "Every token of the lower voices of every held-out piece is scored once, given the whole "
        f"soprano of its window and what Bach wrote before it, in windows of {window} tokens of "
        f"all voices that slide by {window // 2}; label smoothing is left out.",
        "Training pieces are transposed at random as far as each voice stays in its range.",
        *training_notes(settings.training),
        "There are many good ways to harmonise a soprano, so that a translation's measures (BLEU) "
        "would say nothing here.",
    ]
