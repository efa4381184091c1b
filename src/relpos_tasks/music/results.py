"""What a comparison found: the trained models, and what was measured on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from ..machine import machine
from ..models.decoder import DecoderLM
from ..training.trained import TrainedModel, metrics_of_training

__all__ = ["ComparisonResults"]


@dataclass(frozen=True, eq=False)
class ComparisonResults:
    """All numbers of a comparison; lists have an entry for each seed.

    Args:
        trained: the models by position.
        held_out: nats per token by position.
        counting: nats per token of each counting baseline.
        lengths: nats per token by position and window; empty if no piece is long enough.
        pieces: on how many pieces it was measured.
        long_pieces: on how many of them the lengths were tried.
        seeds: of the trainings.
        seconds: training, of all runs of it, and the rest of this one.
        machine: on what it was done.
    """

    trained: Mapping[str, Sequence[TrainedModel[DecoderLM]]]
    held_out: Mapping[str, Sequence[float]]
    counting: Mapping[str, float]
    lengths: Mapping[str, Sequence[Mapping[int, float]]]
    pieces: int
    long_pieces: int
    seeds: Sequence[int] = (0,)
    seconds: float = 0.0
    machine: dict[str, str] = field(default_factory=machine)

    @property
    def steps(self) -> int:
        """Optimiser steps of each model."""
        return next(iter(self.trained.values()))[0].steps

    @property
    def mean(self) -> dict[str, float]:
        """Held-out nats per token by position, the mean over the seeds."""
        return {name: fmean(nats) for name, nats in self.held_out.items()}

    @property
    def best(self) -> str:
        """The position with the fewest held-out nats per token."""
        return min(self.mean, key=self.mean.__getitem__)

    @property
    def mean_lengths(self) -> dict[str, dict[int, float]]:
        """Nats per token by position and window, means over the seeds."""
        return {
            name: {window: fmean(one[window] for one in measured) for window in measured[0]}
            for name, measured in self.lengths.items()
        }

    def metrics(self) -> dict[str, Any]:
        """What `metrics.json` holds."""
        return {
            "held_out": {
                name: {"nats": self.mean[name], "nats_by_seed": list(nats)}
                for name, nats in self.held_out.items()
            },
            "counting": dict(self.counting),
            "lengths": self.mean_lengths,
            "lengths_by_seed": {name: list(one) for name, one in self.lengths.items()},
            "pieces": self.pieces,
            "long_pieces": self.long_pieces,
        } | metrics_of_training(self.trained, seeds=self.seeds, seconds=self.seconds)
