"""What the page on translated text shows of single sentences: translations, and attention."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..report.blocks import Block, FigureBlock, TextBlock
from .attention import encoder_weights
from .blocks import Sample, SamplesBlock
from .figures import sentence_attention_figure
from .measure import WORDS
from .page_parts import first_seed, not_all, relative_of, shown
from .positions import title_of
from .results import ComparisonResults, Translations
from .source import Source
from .split import words
from .subwords import END

__all__ = ["attention_blocks", "samples_blocks"]

# Subwords of the sentence whose attention is shown, its end counted: so many can be read on the
# axes of a map.
_READABLE = 12
_MOST_READABLE = 60


def samples_blocks(
    results: ComparisonResults, found: Translations, ranked: Sequence[str]
) -> list[Block]:
    """A sentence of each length with its translations.

    Args:
        results: the numbers.
        found: the translations.
        ranked: the positions, the best first.
    """
    names = shown(results, ranked)
    chosen: dict[int, int] = {}
    for n, reference in enumerate(found.references):
        chosen.setdefault(int(np.searchsorted(WORDS, words(reference))), n)
    samples = [
        Sample(
            f"Sentence {n + 1:,} of {len(found.sources):,}, {words(found.references[n])} words",
            {"source": found.sources[n], "reference": found.references[n]}
            | {title_of(name): found.systems[name][0][n] for name in names},
        )
        for _, n in sorted(chosen.items())
    ]
    note = (
        "Of each length above the first held-out sentence, by the words of its reference; nothing "
        f"was chosen by its translation.{first_seed(results)}{not_all(results, ranked)}"
    )
    return [TextBlock(note), SamplesBlock(samples)]


def attention_blocks(
    source: Source, results: ComparisonResults, found: Translations, ranked: Sequence[str]
) -> list[Block]:
    """Where the heads of the baseline and of the best relative scheme look in one sentence.

    Args:
        source: the subwords.
        results: the models.
        found: the sentences.
        ranked: the positions, the best first.

    Returns:
        Nothing where every sentence is too long to be read on the axes of a map.
    """
    encoded = [[*ids, END] for ids in source.subwords.encode_all(found.sources)]
    tokens = min(encoded, key=lambda ids: abs(len(ids) - _READABLE))
    if len(tokens) > _MOST_READABLE:
        return []
    labels = [_printable(piece) for piece in source.subwords.pieces(tokens)]
    blocks: list[Block] = [
        TextBlock(
            "The weights of the first layer of the encoder on one held-out sentence: the first of "
            f"those whose number of subwords is nearest to {_READABLE}. A map whose lines run "
            "along the diagonal looks at a distance, one with upright lines at a word."
        )
    ]
    for name in dict.fromkeys([found.baseline, *relative_of(ranked)[:1]]):
        weights = encoder_weights(results.trained[name][0].model, tokens)[0]
        blocks.append(
            FigureBlock(
                sentence_attention_figure(weights, labels, labels),
                f"Attention on one sentence with {title_of(name)}",
                f"{title_of(name)}: how much each subword reads from every other one. Colours grow "
                f"with the square root of the weight.{first_seed(results)}",
            )
        )
    return blocks


def _printable(text: str) -> str:
    """A label that SVG can hold."""
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text
    )
