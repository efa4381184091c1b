"""What a comparison found: the trained models, and what was measured on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from ..machine import machine
from ..models.pixel_classifier import PixelClassifier
from ..training.trained import TrainedModel, metrics_of_training
from .canvas import TESTS

__all__ = ["TRAINED_ON", "ComparisonResults"]

# The test whose canvases are like those of training.
TRAINED_ON = "same"


@dataclass(frozen=True, eq=False)
class ComparisonResults:
    """All numbers of a comparison; lists have an entry for each seed.

    Args:
        trained: the models by position.
        held_out: accuracy by position and test, in 0..1.
        canvases: of each test.
        seeds: of the trainings.
        seconds: training, of all runs of it, and the rest of this one.
        machine: on what it was done.
    """

    trained: Mapping[str, Sequence[TrainedModel[PixelClassifier]]]
    held_out: Mapping[str, Sequence[Mapping[str, float]]]
    canvases: int
    seeds: Sequence[int] = (0,)
    seconds: float = 0.0
    machine: dict[str, str] = field(default_factory=machine)

    @property
    def steps(self) -> int:
        """Optimiser steps of each model."""
        return next(iter(self.trained.values()))[0].steps

    def values(self, position: str, test: str) -> list[float]:
        """The accuracies of a position on a test, one for each seed.

        Args:
            position: one of those compared.
            test: a name in `TESTS`.
        """
        return [found[test] for found in self.held_out[position]]

    def mean(self, position: str, test: str) -> float:
        """The mean of `values`.

        Args:
            position: one of those compared.
            test: a name in `TESTS`.
        """
        return fmean(self.values(position, test))

    def metrics(self) -> dict[str, Any]:
        """What `metrics.json` holds; `accuracy` is that at the places of training."""
        return {
            "held_out": {
                name: {"accuracy": self.mean(name, TRAINED_ON)}
                | {test: self.mean(name, test) for test in TESTS}
                | {"by_seed": [dict(found) for found in measured]}
                for name, measured in self.held_out.items()
            },
            "canvases": self.canvases,
        } | metrics_of_training(self.trained, seeds=self.seeds, seconds=self.seconds)
