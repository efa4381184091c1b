"""What a comparison found: the trained models, and what was measured on them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..machine import machine
from ..models.decoder import DecoderLM
from ..training.clock import TrainingTime
from ..training.task import Curves

__all__ = ["ComparisonResults", "TrainedModel"]


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A trained model and how the training went.

    Args:
        model: on the CPU, in evaluation mode.
        curves: `(step, nats per token)` for `"train"` and `"valid"`.
        time: of training, and whether the machine was busy meanwhile.
        parameters: how many numbers were learned.
    """

    model: DecoderLM
    curves: Curves
    time: TrainingTime
    parameters: int


@dataclass(frozen=True, eq=False)
class ComparisonResults:
    """All numbers of a comparison.

    Args:
        trained: the models by position.
        held_out: nats per token by position.
        counting: nats per token of each counting baseline.
        lengths: nats per token by position and window; empty if no piece is long enough.
        long_pieces: on how many pieces the lengths were tried.
        steps: optimiser steps of each model.
        seconds: training, of all runs of it, and the rest of this one.
        machine: on what it was done.
    """

    trained: dict[str, TrainedModel]
    held_out: dict[str, float]
    counting: dict[str, float]
    lengths: dict[str, dict[int, float]]
    long_pieces: int
    steps: int
    seconds: float = 0.0
    machine: dict[str, str] = field(default_factory=machine)

    def metrics(self) -> dict[str, Any]:
        """What `metrics.json` holds."""
        return {
            "held_out": {**self.held_out, "counting": self.counting},
            "lengths": self.lengths,
            "long_pieces": self.long_pieces,
            "parameters": {name: model.parameters for name, model in self.trained.items()},
            "training_seconds": {
                name: round(model.time.seconds, 2) for name, model in self.trained.items()
            },
            "cores_used_by_others": {
                name: None if (others := model.time.others) is None else round(others, 2)
                for name, model in self.trained.items()
            },
            "timed_on_a_busy_machine": {
                name: model.time.crowded for name, model in self.trained.items()
            },
            "curves": {name: model.curves for name, model in self.trained.items()},
            "steps": self.steps,
            "seconds": round(self.seconds, 2),
        }
