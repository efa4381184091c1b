"""The sentences of the page on translated text, made from its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from ..report.wording import listed, seeds_note, training_notes
from .page_parts import relative_of
from .positions import is_relative, title_of, titles_of
from .results import ComparisonResults, Translations
from .scores import Difference
from .settings import TextSettings
from .source import Source
from .split import MEASURED_BEYOND, TRAINED_UP_TO

if TYPE_CHECKING:
    from .batches import EncodedPairs

__all__ = [
    "LITERATURE",
    "difference_of",
    "differences_note",
    "differences_said",
    "is_good",
    "lengths_note",
    "long_note",
    "protocol",
    "summary",
    "verdict",
]

LITERATURE = [
    "From memory, on other text and other sizes, to say what is known and not to compare with: "
    "for English to German (WMT 2014) Shaw et al. (2018, table 1) report 26.5 BLEU with sinusoids "
    "and 26.8 with relative positions in the base model, 27.9 and 29.2 in the big one.",
    "Rosendahl et al. (2019) find both equal on the whole, but relative positions better by 4.4 to "
    "11.9 BLEU on sentences longer than those of training; Neishi and Yoshinaga (2019) agree.",
    "So a clear gap is to be expected on longer sentences. A thousand sentences do not resolve a "
    "difference of 0.3 BLEU.",
]
# BLEU with which nothing is said.
_POOR = 1.0
# How many are named behind the best.
_NAMED = 4


def summary(
    settings: TextSettings, source: Source, results: ComparisonResults, trained_on: EncodedPairs
) -> str:
    """What was done, in three sentences.

    Args:
        settings: sizes and budget.
        source: the pairs.
        results: the numbers.
        trained_on: the pairs that the models learned from.
    """
    training, (from_language, to_language) = settings.training, source.languages
    seeds = "" if len(results.seeds) == 1 else f", once for each of {len(results.seeds)} seeds"
    ended = f" of at most {TRAINED_UP_TO} words" if settings.length_test else ""
    return (
        f"Encoder-decoders of {settings.layers} + {settings.layers} layers and width "
        f"{settings.width} learned to translate from {from_language} to {to_language} on "
        f"{len(trained_on):,} pairs{ended} from {source.name}{seeds}: they differ in their "
        f"positions alone ({titles_of(results.trained)}). All had the "
        f"same {training.steps:,} steps of at most {training.batch:,} tokens on either side, in "
        "the same order and from the same first numbers. They then translated "
        f"{len(source.split.held_out):,} sentences that none had seen."
    )


def verdict(found: Translations, long: Translations | None = None) -> list[str]:
    """What the held-out translations say, in sentences.

    Args:
        found: the translations.
        long: of them those longer than in training, in the length test.
    """
    ranked = sorted(found.mean, key=found.mean.__getitem__, reverse=True)
    best, others = ranked[0], ranked[1 : 1 + _NAMED]
    named = listed([f"{title_of(name)} ({found.mean[name]:.1f})" for name in others])
    sentences = [
        f"Best: {title_of(best)} with {found.mean[best]:.1f} BLEU on {len(found.sources):,} "
        f"held-out sentences{f', then {named}' if named else ''}."
    ]
    if found.mean[best] < _POOR:
        sentences.append("None of them translates yet: too little training, or too small a model.")
    sentences += _rivals_difference(found)
    if "shaw-0" in found.mean and is_relative(best):
        sentences.append(
            f"With k = 0, where no offset is told from another, BLEU is {found.mean['shaw-0']:.1f}."
        )
    if long is not None and (relative := _rival(long)):
        bleu = listed([f"{title_of(n)} {long.mean[n]:.1f}" for n in (relative, long.baseline)])
        sentences += [
            f"On the {len(long.sources):,} sentences of more than {MEASURED_BEYOND} words, longer "
            f"than any of training: {bleu}.",
            *_rivals_difference(long),
        ]
    if others and found.seeds == 1:
        sentences.append(seeds_note(1))
    return sentences


def is_good(found: Translations, long: Translations | None = None) -> bool:
    """Whether the best relative scheme is above the baseline with every seed.

    With one seed, whether the whole interval of its difference is above 0. Neither knows of seeds
    that were not trained, nor that the best was chosen by these sentences.

    Args:
        found: the translations.
        long: of them those longer than in training, which then decide.
    """
    measured = found if long is None else long
    relative = _rival(measured)
    if relative is None:
        return False
    if measured.seeds == 1:
        return measured.differences[relative].bleu.low > 0
    return min(measured.difference_by_seed[relative]) > 0


def differences_said(found: Translations) -> list[str]:
    """What each difference from the baseline says, as a sentence.

    Args:
        found: the translations; of several seeds no single one is judged.
    """
    return [_difference_said(name, found) for name in found.differences]


def difference_of(name: str, baseline: str, found: Difference) -> str:
    """What the difference of two models says, as a sentence.

    Args:
        name: of the position.
        baseline: of the one that it is compared with.
        found: the difference.
    """
    interval, one, other = found.bleu, title_of(name), title_of(baseline)
    measured = (
        f"({interval.value:+.1f} BLEU, 95 %: {interval.low:+.1f} to {interval.high:+.1f}, "
        f"p = {found.p_value:.3f})"
    )
    if interval.low <= 0 <= interval.high:
        return f"Between {one} and {other} these sentences show no difference {measured}."
    higher = "higher" if interval.value > 0 else "lower"
    return f"With {one} BLEU is {higher} than with {other} {measured}."


def differences_note(results: ComparisonResults, differences: Mapping[str, Difference]) -> str:
    """How to read the table of differences.

    Args:
        results: the numbers.
        differences: by position.
    """
    if len(results.seeds) > 1:
        return (
            "BLEU less that of the baseline, each model beside the baseline's of the same seed: "
            f"mean and standard deviation over {len(results.seeds)} seeds, and the least and the "
            "most. All are measured on the same sentences: what other sentences would change is "
            "not in it."
        )
    several = (
        f" No p-value is corrected for the {len(differences)} comparisons that are made."
        if len(differences) > 1
        else ""
    )
    return (
        "BLEU less that of the baseline, on the same sentences drawn anew a thousand times "
        "(Koehn 2004); the p-value says how often draws differ as much from their mean. An "
        "interval that holds 0 shows no difference. Another seed is chance of another kind, of "
        "which neither knows."
        f"{several}"
    )


def lengths_note(settings: TextSettings, results: ComparisonResults) -> str:
    """On what BLEU by length was measured.

    Args:
        settings: sizes and budget.
        results: the numbers.
    """
    note = (
        "BLEU by the words of the reference, as white space separates them. Few sentences make "
        "wide intervals; BLEU of one length does not compare with that of another."
    )
    if not settings.length_test:
        return note
    straw_man = (
        " Learned absolute positions are a straw man there: all positions beyond the longest "
        "sentence of training share its last row."
        if "absolute" in results.trained
        else ""
    )
    return (
        f"{note} The models were trained on pairs whose target has at most {TRAINED_UP_TO} words: "
        f"what is longer they never saw.{straw_man}"
    )


def long_note(found: Translations, long: Translations) -> str:
    """What the sentences are that are longer than in training, and how all fare on them.

    Args:
        found: all held-out translations.
        long: of them those longer than in training.
    """
    return (
        f"The {len(long.sources):,} of {len(found.sources):,} held-out sentences with more than "
        f"{MEASURED_BEYOND} words, where training ended at {TRAINED_UP_TO}."
    )


def protocol(
    settings: TextSettings, source: Source, results: ComparisonResults, trained_on: EncodedPairs
) -> list[str]:
    """How it was measured, as sentences.

    Args:
        settings: sizes and budget.
        source: the pairs.
        results: the numbers.
        trained_on: the pairs that the models learned from.
    """
    k_is_0 = [
        "k = 0: every offset shares one row, so that nothing is relative: the encoder reads a "
        "sentence without its order, and the decoder knows order through its causal mask alone. "
        "The paper's model collapses there (12.5 BLEU, from memory); on short sentences, whose "
        "words tell their order, the fall may be smaller."
    ] if "shaw-0" in results.trained else []  # fmt: skip
    return [
        f"Pairs: {source.split}. No sentence that is trained on is held out too, not even with "
        "other case or punctuation. Nothing was chosen on the held-out pairs: the default sizes "
        "and budget were on pairs set aside from Multi30k's train.",
        f"Tokens are {source.subwords.size:,} subwords of both languages (byte-level byte pair "
        "encoding), learned from the training pairs alone. Of those with a sentence of more than "
        f"{settings.longest} none is trained on: {trained_on.left_out:,} were left out, "
        f"{len(trained_on):,} trained on.",
        "Positions act in the self-attentions of both sides or at both inputs, and not between "
        "the sides, as in Shaw et al. (2018).",
        "Nats per target token are measured on the references, the end of a sentence counted, "
        "without label smoothing; lower is better.",
        f"Translations are those of a beam search over {settings.beam} hypotheses with a length "
        f"penalty of {settings.alpha:g}. BLEU and chrF are sacrebleu's, on cased text; the "
        "intervals hold the middle 95 % of what a thousand draws of the sentences give. Figures "
        "on lower-cased or tokenised text do not compare with them.",
        *training_notes(settings.training),
        *k_is_0,
    ]  # fmt: skip


def _rival(found: Translations) -> str | None:
    """The relative position with the highest BLEU that is not the baseline itself."""
    return next(iter(_rivals(found)), None)


def _rivals(found: Translations) -> list[str]:
    return relative_of(sorted(found.differences, key=found.mean.__getitem__, reverse=True))


def _rivals_difference(found: Translations) -> list[str]:
    """How the best relative position differs from the baseline, and that it was chosen."""
    rivals = _rivals(found)
    said = [_difference_said(name, found) for name in rivals[:1]]
    if len(rivals) > 1:
        said.append(
            f"It was chosen as the best of {len(rivals)} relative schemes on these very sentences, "
            "so that its difference tends to look larger than it is."
        )
    return said


def _difference_said(name: str, found: Translations) -> str:
    if found.seeds == 1:
        return difference_of(name, found.baseline, found.differences[name])
    return _difference_over_seeds(name, found.baseline, found.difference_by_seed[name])


def _difference_over_seeds(name: str, baseline: str, by_seed: Sequence[float]) -> str:
    """What the differences of models of the same seeds say, as a sentence."""
    one, other, low, high = title_of(name), title_of(baseline), min(by_seed), max(by_seed)
    measured = f"(mean {fmean(by_seed):+.1f} BLEU, {low:+.1f} to {high:+.1f})"
    if low <= 0 <= high:
        return (
            f"On a difference between {one} and {other} {len(by_seed)} seeds do not agree "
            f"{measured}."
        )
    higher = "higher" if low > 0 else "lower"
    return (
        f"With {one} BLEU is {higher} than with {other} for each of {len(by_seed)} seeds "
        f"{measured}."
    )
