"""What a comparison found: the trained models, what was measured, and what they translated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from ..machine import machine
from ..models.encoder_decoder import EncoderDecoder
from ..training.trained import TrainedModel, metrics_of_training
from .scores import Buckets, Difference, SystemScores

__all__ = ["ComparisonResults", "Translations"]


@dataclass(frozen=True, eq=False)
class Translations:
    """The held-out sentences as the models translate them, and what that is worth.

    Lists of a position have an entry for each seed.

    Args:
        sources: the sentences.
        references: a translation of each.
        systems: those of the models, by position.
        scores: BLEU and chrF, by position.
        differences: of the models of the first seed from the baseline's, by position.
        by_length: BLEU by the words of the reference, one for each seed.
        baseline: the position to which the others are compared.
        search: what was asked of the search, by name.
        beyond: the same on the sentences longer than those of training alone, in the length test.
    """

    sources: Sequence[str]
    references: Sequence[str]
    systems: Mapping[str, Sequence[Sequence[str]]]
    scores: Mapping[str, Sequence[SystemScores]]
    differences: Mapping[str, Difference]
    by_length: Sequence[Buckets]
    baseline: str
    search: Mapping[str, int | float] = field(default_factory=dict)
    beyond: Translations | None = None

    @property
    def seeds(self) -> int:
        """Models of each position."""
        return len(self.systems[self.baseline])

    @property
    def mean(self) -> dict[str, float]:
        """BLEU by position, the mean over the seeds."""
        return {name: fmean(bleu) for name, bleu in self.bleu.items()}

    @property
    def bleu(self) -> dict[str, list[float]]:
        """BLEU by position and seed."""
        return {
            name: [one.bleu.value for one in of_seeds] for name, of_seeds in self.scores.items()
        }

    @property
    def difference_by_seed(self) -> dict[str, list[float]]:
        """BLEU less that of the baseline's model of the same seed, by position."""
        bleu = self.bleu
        baseline = bleu.pop(self.baseline)
        return {
            name: [one - other for one, other in zip(of_seeds, baseline, strict=True)]
            for name, of_seeds in bleu.items()
        }

    def of_position(self, name: str) -> dict[str, Any]:
        """What `metrics.json` says of a position: the interval is that of the first seed.

        Args:
            name: of the position.
        """
        first = self.scores[name][0]
        found: dict[str, Any] = {
            "bleu": self.mean[name],
            "bleu_by_seed": self.bleu[name],
            "bleu_low": first.bleu.low,
            "bleu_high": first.bleu.high,
            "chrf": fmean(one.chrf for one in self.scores[name]),
        }
        if name in self.differences:
            found["difference"] = {"from": self.baseline} | asdict(self.differences[name])
            found["difference_by_seed"] = self.difference_by_seed[name]
        if self.beyond is not None:
            found["beyond_training"] = self.beyond.of_position(name)
        return found

    def metrics(self) -> dict[str, Any]:
        """What `metrics.json` says of all of them."""
        first = next(iter(self.scores.values()))[0]
        return {
            "sentences": first.sentences,
            "search": dict(self.search),
            "signatures": dict(first.signatures),
            "words": list(self.by_length[0].names),
            "sentences_by_words": list(self.by_length[0].sentences),
            "bleu_by_words": {
                name: [[one.value for one in of_seed.bleu[name]] for of_seed in self.by_length]
                for name in self.scores
            },
        }


@dataclass(frozen=True, eq=False)
class ComparisonResults:
    """All numbers of a comparison; lists have an entry for each seed.

    Args:
        trained: the models by position.
        held_out: nats per target token by position.
        translations: of sentences; None where chorales are harmonised.
        seeds: of the trainings.
        seconds: training, of all runs of it, and the rest of this one.
        machine: on what it was done.
    """

    trained: Mapping[str, Sequence[TrainedModel[EncoderDecoder]]]
    held_out: Mapping[str, Sequence[float]]
    translations: Translations | None = None
    seeds: Sequence[int] = (0,)
    seconds: float = 0.0
    machine: dict[str, str] = field(default_factory=machine)

    @property
    def steps(self) -> int:
        """Optimiser steps of each model."""
        return next(iter(self.trained.values()))[0].steps

    @property
    def mean(self) -> dict[str, float]:
        """Nats per target token by position, the mean over the seeds."""
        return {name: fmean(nats) for name, nats in self.held_out.items()}

    @property
    def best(self) -> str:
        """The position with the fewest nats."""
        return min(self.mean, key=self.mean.__getitem__)

    def metrics(self) -> dict[str, Any]:
        """What `metrics.json` holds."""
        held_out: dict[str, dict[str, Any]] = {
            name: {"nats": self.mean[name], "nats_by_seed": list(nats)}
            for name, nats in self.held_out.items()
        }
        found: dict[str, Any] = {"held_out": held_out}
        if self.translations is not None:
            for name in held_out:
                held_out[name] |= self.translations.of_position(name)
            found["translations"] = self.translations.metrics()
        return found | metrics_of_training(self.trained, seeds=self.seeds, seconds=self.seconds)
