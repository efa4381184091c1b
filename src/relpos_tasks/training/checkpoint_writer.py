"""When a training writes its checkpoints, and how: whole, or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins.io import TorchCheckpointIO

from ..files import replacing
from .checkpoint import ABOUT, save_weights
from .run_folder import RESUME
from .settings import TrainingError

__all__ = ["AtomicCheckpointIO", "CheckpointWriter", "checkpoint_io"]


class CheckpointWriter(Callback):
    """Writes a checkpoint every so many steps, after the validation where both fall due, and last.

    Each holds what `model.json` says, so that it can be gone on from alone.

    Args:
        folder: of the run.
        about: what `model.json` says.
    """

    def __init__(self, folder: Path, about: dict[str, Any]) -> None:
        self.folder, self.about = folder, about

    def on_train_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        """Note that all of the last checkpoint is taken up."""
        checkpoint_io(trainer).restoring = False

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, *_: Any
    ) -> None:
        """Write, where no validation comes first."""
        if _due(trainer, pl_module) and not _validation_due(trainer):
            self._write(trainer, pl_module)

    def on_validation_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        """Write with what was measured."""
        if not trainer.sanity_checking and _due(trainer, pl_module):
            self._write(trainer, pl_module)

    def on_train_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        """Write the last one."""
        self._write(trainer, pl_module)

    def on_save_checkpoint(
        self,
        trainer: lightning.Trainer,
        pl_module: lightning.LightningModule,
        checkpoint: dict[str, Any],
    ) -> None:
        """Put what `model.json` says beside what Lightning keeps."""
        # As text: its names may be of classes that torch's safe reader refuses.
        checkpoint[ABOUT] = json.dumps(self.about)

    def _write(self, trainer: lightning.Trainer, task: Any) -> None:
        if not all(parameter.isfinite().all() for parameter in task.parameters()):
            # Nothing could be done with them, and what was written before is still good.
            raise TrainingError(
                f"{self.folder}: the weights must stay finite, got NaN or infinity by step "
                f"{trainer.global_step}; try --precision 32-true"
            )
        if trainer.is_global_zero:
            save_weights(self.folder, task.measured)
        trainer.save_checkpoint(self.folder / RESUME)


class AtomicCheckpointIO(TorchCheckpointIO):
    """Replaces the last checkpoint in one step, so that kill -9 leaves the old or the new one."""

    restoring = False  # whether Lightning now takes up what it has loaded

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """What is in the file, for Lightning to take up."""
        self.restoring = True
        return super().load_checkpoint(path, *args, **kwargs)

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Write beside the last checkpoint, then take its place."""
        with replacing(path) as partial, partial.open("wb") as file:
            torch.save(checkpoint, file)


def checkpoint_io(trainer: lightning.Trainer) -> AtomicCheckpointIO:
    """The trainer's own, where it was given one."""
    found = trainer.strategy.checkpoint_io
    assert isinstance(found, AtomicCheckpointIO)
    return found


def _due(trainer: lightning.Trainer, task: Any) -> bool:
    step, settings = trainer.global_step, task.settings
    return step < settings.steps and step % settings.checkpoint_every == 0


def _validation_due(trainer: lightning.Trainer) -> bool:
    return trainer.global_step % int(trainer.val_check_interval) == 0  # type: ignore[arg-type]
