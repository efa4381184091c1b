"""Training of any model on Lightning, resumable to the bit.

Everything random is a pure function of the seed and the step: the batches (the data sees to it)
and the dropout (the generators are seeded anew before each step). So a run that was stopped, by
Ctrl-C or by kill -9, and then resumed from its last checkpoint ends with the same weights as one
that was never stopped.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import fmean
from typing import Any, ClassVar

import lightning
import torch
from torch import Tensor, nn

from .averaging import moving_average
from .clock import TrainingClock
from .optimizers import optimizer_of
from .peak_memory import PeakMemory
from .settings import TrainingSettings

__all__ = ["Curves", "Task"]

# For "train" and "valid": step and loss.
Curves = dict[str, list[tuple[int, float]]]


class Task(lightning.LightningModule, ABC):
    """A model in training: optimiser, warm-up, cosine decay, curves and the time it took.

    What is of one kind of model is left to its own class, such as `LanguageModelTask`: the loss of
    a batch, and what its batches consist of. `curves` grows with training: `(step, loss)` for
    train and valid. Where weights are averaged, training goes on from the plain ones, and its curve
    is theirs, while validation is of the average.

    Args:
        model: what is trained.
        settings: how to train.
    """

    # The loss and its unit, and what batches consist of, for the progress bar and the logs.
    loss_unit: ClassVar[str]
    units: ClassVar[str]

    def __init__(self, model: nn.Module, settings: TrainingSettings) -> None:
        super().__init__()
        self.model = model
        self.settings = settings
        decay = settings.averaging
        # A part of the task: on its device, and in its checkpoints.
        self.average = None if decay is None else moving_average(model, decay)
        self.curves: Curves = {"train": [], "valid": []}
        self.clock = TrainingClock()
        self.memory = PeakMemory()
        self._step_since = 0.0
        self._recent: list[Tensor | float] = []

    @abstractmethod
    def loss(self, batch: Any) -> tuple[Tensor, Tensor]:
        """The loss of a batch as a sum, and over how many scored targets the sum goes."""

    @abstractmethod
    def count_units(self, batch: Any) -> int:
        """How many `units` a batch consists of."""

    def objective(self, batch: Any) -> tuple[Tensor, Tensor, Tensor]:
        """What training minimises and what its curve shows, as sums, and over how many targets.

        Both are the loss, unless a class makes what is minimised another sum.
        """
        total, scored = self.loss(batch)
        return total, total, scored

    def training_step(self, batch: Any, index: int) -> Tensor:
        """The mean of what is minimised over a batch, this device's part of it.

        The strategy averages gradients over devices. The parts do not all have as many targets, so
        each counts as much as it has of them.
        """
        minimised, total, scored = self.objective(batch)
        loss = total.detach() / scored.clamp(min=1)
        self._recent.append(loss)
        self.log("train/loss", loss, prog_bar=False, batch_size=1)
        done = self.global_step + 1
        if done % self.curve_every == 0 or done == self.settings.steps:
            # Those of before a stop are numbers, those of this run lie on the device.
            recent = fmean(map(float, self._recent))
            self.curves["train"].append((done, recent))
            self._recent.clear()
        return minimised / _mean_over_devices(scored).clamp(min=1)

    def validation_step(self, batch: Any, index: int) -> None:
        """Mean loss of a batch, weighted by its scored targets in the mean over batches."""
        # Every device measures everything: the mean over devices is each one's.
        with self._measured_as_model():
            total, scored = self.loss(batch)
        loss = total / scored.clamp(min=1)
        self.log("valid/loss", loss, batch_size=int(scored), sync_dist=True)

    def on_validation_epoch_end(self) -> None:
        """Keep the curve."""
        if not self.trainer.sanity_checking:
            value = float(self.trainer.callback_metrics["valid/loss"])
            self.curves["valid"].append((self.global_step, value))

    def on_train_start(self) -> None:
        """Start the clock."""
        self.memory.start(self.device)
        self.clock.start(processes=self.trainer.world_size)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Seed the dropout, so that it depends on the seed, the step and the device alone."""
        stream = (self.settings.seed * 2**20 + self.global_step) * 2**10 + self.global_rank
        torch.manual_seed(stream % 2**63)
        self._step_since = time.perf_counter()

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log the speed: of the step alone, without validation and checkpoints."""
        count = self.count_units(batch) * self.trainer.world_size
        rate = count / max(time.perf_counter() - self._step_since, 1e-9)
        self.log(self.rate_name, rate, batch_size=1)

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None
    ) -> None:
        """Take a step, and the weights after it into the average."""
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        if self.average is not None:
            self.average.update_parameters(self.model)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep what the curves need, beside what Lightning keeps."""
        checkpoint["relpos"] = {
            "curves": self.curves,
            "clock": self.clock.state_dict(),
            "memory": self.memory.state_dict(),
            "recent": [float(loss) for loss in self._recent],
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on where the checkpoint was written."""
        kept = checkpoint["relpos"]
        self.curves = kept["curves"]
        self.clock.load_state_dict(kept["clock"])
        self.memory.load_state_dict(kept["memory"])
        self._recent = list(kept["recent"])

    def on_train_end(self) -> None:
        """Stop the clock."""
        self.memory.stop()
        self.clock.stop()

    @property
    def measured(self) -> nn.Module:
        """The model that is validated and written: the average, or without one the model."""
        return self.model if self.average is None else self.average.module

    def finish(self) -> None:
        """Leave the model as it was measured, in float32 on the CPU and in evaluation mode."""
        self.to("cpu", torch.float32).eval()
        self.model.load_state_dict(self.measured.state_dict())

    @property
    def rate_name(self) -> str:
        """What the logs call the speed."""
        return f"train/{self.units.replace(' ', '_')}_per_second"

    @property
    def curve_every(self) -> int:
        """Steps between two points of the training curve: 20 to some hundred points."""
        return max(1, min(20, self.settings.steps // 20), self.settings.steps // 500)

    def configure_optimizers(self) -> Any:
        """A linear warm-up and a cosine decay of every learning rate, by the step."""
        optimizer = optimizer_of(self.model, self.settings)
        # A lambda stays out of the checkpoint, into which a method would be written.
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer,
            lambda step: self._rate(step),  # noqa: PLW0108
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    @contextmanager
    def _measured_as_model(self) -> Iterator[None]:
        """Let `loss` use the model that is measured."""
        trained, self.model = self.model, self.measured
        try:
            yield
        finally:
            self.model = trained

    def _rate(self, step: int) -> float:
        warmup, steps = min(self.settings.warmup, self.settings.steps // 2), self.settings.steps
        if step < warmup:
            return (step + 1) / warmup
        return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def _mean_over_devices(scored: Tensor) -> Tensor:
    """How many targets a device has on average; on one device those that it has."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return scored
    total = scored.clone()
    torch.distributed.all_reduce(total)
    return total / torch.distributed.get_world_size()
