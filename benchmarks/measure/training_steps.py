"""The steps of a training, without the trainer: loss, gradients, clipping and the optimiser."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.nn.utils import clip_grad_norm_

from relpos_tasks.training.task import Task

__all__ = ["TrainingSteps"]


class TrainingSteps:
    """A task in training whose steps are asked for one by one.

    The learning rate stays that of the first step.

    Args:
        task: its model is trained in place.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.optimizer = task.configure_optimizers()["optimizer"]

    def step(self, batch: Any) -> float:
        """One step; its loss.

        Args:
            batch: as the task takes them.
        """
        minimised, total, scored = self.task.objective(batch)
        self.optimizer.zero_grad()
        (minimised / scored).backward()
        clip_grad_norm_(self.task.parameters(), self.task.settings.clip)
        self.optimizer.step()
        return float(total.detach() / scored)

    def run(self, batches: Iterable[Any]) -> None:
        """A step for each batch.

        Args:
            batches: as the task takes them.
        """
        for batch in batches:
            self.step(batch)
