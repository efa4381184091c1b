"""Trained models back on the GPU that trained them, to be measured there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from .devices import Devices, trainer_on

__all__ = ["on_measuring_device"]


@contextmanager
def on_measuring_device(models: Iterable[nn.Module], devices: Devices) -> Iterator[None]:
    """Models, all at once, on the first CUDA GPU that trained; behind the block on the CPU again.

    Training leaves a model on the CPU, where what was trained on a GPU is too slow to measure. With
    any other accelerator the models stay there: measures add up in float64, which not all have.

    Args:
        models: trained, on the CPU.
        devices: where they were trained.

    Raises:
        TrainingError: as `trainer_on`.
    """
    models = list(models)
    device = _measuring_device(devices)
    try:
        for model in models:
            model.to(device)
        yield
    finally:
        for model in models:
            model.to("cpu")


def _measuring_device(devices: Devices) -> torch.device:
    trainer = trainer_on(devices, logger=False, enable_progress_bar=False)
    device = trainer.strategy.root_device
    return device if device.type == "cuda" else torch.device("cpu")
