"""BLEU and chrF of translations, how sure they are, and whether two systems differ.

BLEU (Papineni et al. 2002) and chrF (Popović 2015) are sacrebleu's (Post 2018), on the text
itself: cased, with its tokeniser 13a; its signature says all that can differ. How sure a score is
comes from drawing the sentences anew a thousand times (Koehn 2004): the interval holds the middle
95 % of what is then measured. Systems are compared on the same draws, and the p-value says how
often differences of the draws lie as far from their mean as the difference that was measured lies
from none (Efron and Tibshirani 1993, chapter 16). Draws are those of `sacrebleu.significance`, made
one after the other, since all at once they would take gigabytes for tens of thousands of
sentences. Its p-value is another one: it takes the mean from differences without their sign, so
that systems which hardly differ have p-values near 0.4, and not near 1.

Training again with another seed is another source of chance, of which no interval here knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64
from numpy import ndarray
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

__all__ = [
    "Buckets",
    "Difference",
    "Interval",
    "SystemScores",
    "bleu_by_length",
    "compare_systems",
    "score_system",
]

_DRAWS = 1000
# sacrebleu's own, so that intervals are what it would say.
_SEED = 12345


@dataclass(frozen=True)
class Interval:
    """A measure and the middle 95 % of what it is when sentences are drawn anew."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.1f} ({self.low:.1f} to {self.high:.1f})"


@dataclass(frozen=True)
class SystemScores:
    """What a system's translations are worth.

    Args:
        bleu: cased, in 0..100.
        chrf: likewise.
        sentences: on how many.
        signatures: what sacrebleu says of how both were computed, by `"bleu"` and `"chrf"`.
    """

    bleu: Interval
    chrf: float
    sentences: int
    signatures: Mapping[str, str]


@dataclass(frozen=True)
class Difference:
    """By how much a system is better than the baseline.

    Args:
        bleu: its BLEU less that of the baseline.
        p_value: of the paired bootstrap; 1 where all translations are the same.
    """

    bleu: Interval
    p_value: float


@dataclass(frozen=True)
class Buckets:
    """BLEU of some systems by the length of sentences.

    Args:
        names: of the buckets, such as `"6-10"`, from the shortest.
        sentences: in each.
        bleu: for each system one interval a bucket.
    """

    names: Sequence[str]
    sentences: Sequence[int]
    bleu: Mapping[str, Sequence[Interval]]


def score_system(translations: Sequence[str], references: Sequence[str]) -> SystemScores:
    """BLEU with its interval, and chrF.

    Args:
        translations: of a system, as plain text.
        references: one for each.

    Raises:
        ValueError: if there are none, or not as many.

    >>> same = score_system(["Ein Mann schläft."], ["Ein Mann schläft."])
    >>> str(same.bleu), same.chrf
    ('100.0 (100.0 to 100.0)', 100.0)
    """
    _check("score_system", {"translations": translations}, references)
    bleu, chrf = BLEU(), CHRF()
    counts = _counts(bleu, translations, references)
    chrf_score = chrf.corpus_score(translations, [references]).score
    signatures = {"bleu": str(bleu.get_signature()), "chrf": str(chrf.get_signature())}
    (drawn,) = _drawn(bleu, [counts])
    value = _bleu(bleu, counts.sum(axis=0))
    return SystemScores(_interval(value, drawn), chrf_score, len(references), signatures)


def compare_systems(
    systems: Mapping[str, Sequence[str]], references: Sequence[str], *, baseline: str
) -> dict[str, Difference]:
    """How much better each system is than one of them, on the same draws of sentences.

    Args:
        systems: the translations of each.
        references: one for each sentence.
        baseline: the name of the one to compare with.

    Returns:
        The difference of every other system.

    Raises:
        ValueError: if there is no such system, or sentences are missing.
    """
    if baseline not in systems:
        raise ValueError(
            f"compare_systems: baseline must be one of {', '.join(systems)}, got {baseline!r}"
        )
    _check("compare_systems", systems, references)
    bleu = BLEU()
    counts = [_counts(bleu, it, references) for it in systems.values()]
    values = dict(zip(systems, (_bleu(bleu, it.sum(axis=0)) for it in counts), strict=True))
    drawn = dict(zip(systems, _drawn(bleu, counts), strict=True))
    differences = {}
    for name in systems:
        if name != baseline:
            value, of_draws = values[name] - values[baseline], drawn[name] - drawn[baseline]
            differences[name] = Difference(_interval(value, of_draws), _p_value(value, of_draws))
    return differences


def bleu_by_length(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[str],
    lengths: Sequence[int],
    *,
    last: Sequence[int],
) -> Buckets:
    """BLEU of each system on sentences of like length.

    Args:
        systems: the translations of each.
        references: one for each sentence.
        lengths: of the sentences, in whatever unit: of the sources, or of the references.
        last: the largest length of each bucket but the last one, rising.

    Returns:
        The buckets that hold a sentence.

    Raises:
        ValueError: if sentences are missing, or `last` does not rise.

    >>> found = bleu_by_length({"a": ["x y", "z"]}, ["x y", "z"], [2, 1], last=[1, 5])
    >>> found.names, found.sentences
    (['0-1', '2-5'], [1, 1])
    """
    _check("bleu_by_length", {**systems, "lengths": lengths}, references)
    if list(last) != sorted(set(last)):
        raise ValueError(f"bleu_by_length: last must rise, got {list(last)}")
    bleu = BLEU()
    counts = [_counts(bleu, it, references) for it in systems.values()]
    bucket = np.searchsorted(np.asarray(last), np.asarray(lengths))
    found = [int(n) for n in np.unique(bucket)]
    first = [0, *(one + 1 for one in last)]
    measured: dict[str, list[Interval]] = {name: [] for name in systems}
    for n in found:
        inside = [it[bucket == n] for it in counts]
        for name, it, drawn in zip(systems, inside, _drawn(bleu, inside), strict=True):
            measured[name].append(_interval(_bleu(bleu, it.sum(axis=0)), drawn))
    return Buckets(
        [f"{first[n]}-{last[n]}" if n < len(last) else f"{first[n]}+" for n in found],
        [int((bucket == n).sum()) for n in found],
        measured,
    )


def _counts(
    bleu: BLEU, translations: Sequence[str], references: Sequence[str]
) -> Int64[ndarray, "sentences 10"]:
    """For each sentence its length, the reference's, four matches and four n-gram totals."""
    found = []
    for translation, reference in zip(translations, references, strict=True):
        one: Any = bleu.corpus_score([translation], [[reference]])
        found.append([one.sys_len, one.ref_len, *one.counts, *one.totals])
    return np.array(found, np.int64)


def _bleu(bleu: BLEU, counts: Int64[ndarray, "10"]) -> float:
    sizes = counts.tolist()
    found = bleu.compute_bleu(
        correct=sizes[2:6], total=sizes[6:], sys_len=sizes[0], ref_len=sizes[1],
        smooth_method=bleu.smooth_method, smooth_value=bleu.smooth_value,
        effective_order=bleu.effective_order, max_ngram_order=bleu.max_ngram_order,
    )  # fmt: skip
    return found.score


def _drawn(
    bleu: BLEU, counts: Sequence[Int64[ndarray, "sentences 10"]]
) -> Float64[ndarray, "systems draws"]:
    """BLEU of each draw, the same draws for each system."""
    rng, sentences = np.random.default_rng(_SEED), len(counts[0])
    found = np.empty((len(counts), _DRAWS))
    for n in range(_DRAWS):
        # How often the draw has each sentence.
        draw = np.bincount(rng.choice(sentences, size=sentences), minlength=sentences)
        found[:, n] = [_bleu(bleu, draw @ it) for it in counts]
    return found


def _p_value(value: float, drawn: Float64[ndarray, "draws"]) -> float:
    """How often draws are so far from their mean, on either side; never 0."""
    beyond = int((np.abs(drawn - drawn.mean()) >= abs(value)).sum())
    return (beyond + 1) / (len(drawn) + 1)


def _interval(value: float, drawn: Float64[ndarray, "draws"]) -> Interval:
    ordered, beyond = np.sort(drawn), len(drawn) // 40
    return Interval(value, float(ordered[beyond]), float(ordered[-1 - beyond]))


def _check(function: str, columns: Mapping[str, Sequence[Any]], references: Sequence[str]) -> None:
    if not references:
        raise ValueError(f"{function}: references must be at least one, got none")
    for name, column in columns.items():
        if len(column) != len(references):
            raise ValueError(
                f"{function}: {name} must be {len(references)}, one for each reference, "
                f"got {len(column)}"
            )
