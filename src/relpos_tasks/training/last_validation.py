"""A validation after the last step too: what is chosen by it is the model that is written."""

from __future__ import annotations

from typing import Any

import lightning
from lightning.pytorch.callbacks import Callback

__all__ = ["LastValidation"]


class LastValidation(Callback):
    """Asks Lightning to stop after the last step, before which it validates once more.

    Where a validation is due then anyway, it is the only one.
    """

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, *_: Any
    ) -> None:
        """Look whether the step was the last."""
        if trainer.global_step >= trainer.max_steps:
            trainer.should_stop = True
