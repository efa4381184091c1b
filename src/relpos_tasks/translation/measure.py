"""The held-out sentences translated by every model of a comparison, and scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..models.encoder_decoder import EncoderDecoder
from ..progress import show_progress
from .results import Translations
from .scores import bleu_by_length, compare_systems, score_system
from .settings import TextSettings
from .source import Source
from .split import MEASURED_BEYOND, TRAINED_UP_TO, words
from .translate import translate

__all__ = ["WORDS", "beyond_training", "scored", "translations"]

# The most words of a reference in each bucket but the last; training of the length test ends at one
# of them, and its long sentences begin at another.
WORDS = (5, TRAINED_UP_TO, MEASURED_BEYOND, 15, 20, 30)


def translations(
    models: Mapping[str, Sequence[EncoderDecoder]],
    settings: TextSettings,
    source: Source,
) -> Translations:
    """What the models make of the held-out sentences.

    Args:
        models: by position, one for each seed; the first position is the baseline.
        settings: of the search.
        source: the sentences.
    """
    held_out = source.split.held_out
    sources, references = [p.source for p in held_out], [p.target for p in held_out]

    def translated(name: str, model: EncoderDecoder) -> list[str]:
        with show_progress(f"translating ({name})", len(sources), "sentences") as progress:
            return translate(
                model,
                source.subwords,
                sources,
                beam=settings.beam,
                alpha=settings.alpha,
                progress=progress,
            )

    systems = {
        name: [translated(name, model) for model in of_seeds] for name, of_seeds in models.items()
    }
    return replace(scored(sources, references, systems), search=settings.search())


def scored(
    sources: Sequence[str],
    references: Sequence[str],
    systems: Mapping[str, Sequence[Sequence[str]]],
) -> Translations:
    """What translations are worth.

    Args:
        sources: the sentences.
        references: a translation of each.
        systems: those of the models by position, one list for each seed; the first position is the
            baseline.
    """
    baseline = next(iter(systems))
    first = {name: of_seeds[0] for name, of_seeds in systems.items()}
    lengths = [words(reference) for reference in references]
    return Translations(
        sources=sources,
        references=references,
        systems=systems,
        scores={
            name: [score_system(one, references) for one in of_seeds]
            for name, of_seeds in systems.items()
        },
        differences=compare_systems(first, references, baseline=baseline),
        by_length=[
            bleu_by_length(
                {name: of_seeds[n] for name, of_seeds in systems.items()},
                references,
                lengths,
                last=WORDS,
            )
            for n in range(len(systems[baseline]))
        ],
        baseline=baseline,
    )


def beyond_training(found: Translations) -> Translations:
    """The same on the sentences that are longer than those of the length test's training.

    Args:
        found: of the held-out sentences, some of them with more than `MEASURED_BEYOND` words.
    """
    long = [n for n, text in enumerate(found.references) if words(text) > MEASURED_BEYOND]
    return scored(
        [found.sources[n] for n in long],
        [found.references[n] for n in long],
        {
            name: [[one[n] for n in long] for one in of_seeds]
            for name, of_seeds in found.systems.items()
        },
    )
