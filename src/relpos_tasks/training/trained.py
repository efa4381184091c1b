"""A model that was trained, and how its training went."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Generic, TypeVar

from torch import nn

from .clock import TrainingTime
from .task import Curves, Task

__all__ = ["TrainedModel", "metrics_of_training", "trained_model"]

ModelT = TypeVar("ModelT", bound=nn.Module)


@dataclass(frozen=True, eq=False)
class TrainedModel(Generic[ModelT]):
    """A trained model and how the training went.

    Args:
        model: on the CPU, in evaluation mode.
        curves: `(step, loss)` for `"train"` and `"valid"`.
        time: of training, and whether the machine was busy meanwhile.
        parameters: how many numbers were learned.
        steps: optimiser steps.
        peak_memory: the most that was held at once, in MiB; None where the system does not say.
    """

    model: ModelT
    curves: Curves
    time: TrainingTime
    parameters: int
    steps: int
    peak_memory: float | None = None

    @property
    def steps_per_second(self) -> float:
        """Of training, validation and checkpoints included."""
        return self.steps / max(self.time.seconds, 1e-9)


def trained_model(task: Task, model: ModelT) -> TrainedModel[ModelT]:
    """What a finished training leaves.

    Args:
        task: that was fitted.
        model: its model.
    """
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return TrainedModel(
        model, task.curves, task.clock.time, parameters, task.settings.steps, task.memory.mib
    )


def metrics_of_training(
    trained: Mapping[str, Sequence[TrainedModel]], *, seeds: Sequence[int], seconds: float
) -> dict[str, Any]:
    """What `metrics.json` of every task says of the trainings, by position.

    Args:
        trained: by position, a model for each seed.
        seeds: in the order of the models.
        seconds: of the whole job.

    Returns:
        Seconds, steps per second and cores as means over the seeds, the peak memory of the largest
        in MiB, the curves of the first.
    """
    first = {name: models[0] for name, models in trained.items()}
    return {
        "parameters": {name: one.parameters for name, one in first.items()},
        "steps_per_second": _over_seeds(fmean, trained, lambda one: one.steps_per_second),
        "peak_memory_mib": _over_seeds(max, trained, lambda one: one.peak_memory),
        "training_seconds": _over_seeds(fmean, trained, lambda one: one.time.seconds),
        "cores_used_by_others": _over_seeds(fmean, trained, lambda one: one.time.others),
        "timed_on_a_busy_machine": {
            name: any(one.time.crowded for one in models) for name, models in trained.items()
        },
        "curves": {name: one.curves for name, one in first.items()},
        "steps": next(iter(first.values())).steps,
        "seeds": list(seeds),
        "seconds": round(seconds, 2),
    }


def _over_seeds(
    combine: Callable[[list[float]], float],
    trained: Mapping[str, Sequence[TrainedModel]],
    figure: Callable[[TrainedModel], float | None],
) -> dict[str, float | None]:
    """One number for the figures of all seeds, by position; None where a figure is missing."""
    combined: dict[str, float | None] = {}
    for name, models in trained.items():
        values = [value for one in models if (value := figure(one)) is not None]
        combined[name] = round(combine(values), 2) if len(values) == len(models) else None
    return combined
