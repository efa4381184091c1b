"""Where to train, in Lightning's own words."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import lightning
from lightning.fabric.utilities.exceptions import MisconfigurationException

from .settings import TrainingError

__all__ = ["Devices", "trainer_on"]


@dataclass(frozen=True)
class Devices:
    """Where to train, in Lightning's own words.

    Args:
        accelerator: `"auto"`, `"cpu"`, `"gpu"`, `"mps"`.
        devices: how many, or which, or `"auto"`.
        precision: `"32-true"`, `"bf16-mixed"`, `"16-mixed"`.
    """

    accelerator: str = "auto"
    devices: str = "1"
    precision: str = "32-true"


def trainer_on(devices: Devices, **options: Any) -> lightning.Trainer:
    """A trainer that says nothing of its own and writes no checkpoint of its own.

    Args:
        devices: where to train.
        options: more arguments of Lightning's trainer.

    Raises:
        TrainingError: if Lightning refuses the devices, in its words.
    """
    for name in ("lightning.pytorch", "lightning.fabric"):
        # Which devices there are is said once, in our own words.
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        return lightning.Trainer(
            accelerator=devices.accelerator,
            devices=_number_or_name(devices.devices),
            precision=devices.precision,  # type: ignore[arg-type]
            enable_checkpointing=False,
            enable_model_summary=False,
            **options,
        )
    except (
        ImportError,
        ValueError,
        RuntimeError,
        TypeError,
        MisconfigurationException,
    ) as error:
        raise TrainingError(" ".join(str(error).split())) from error


def _number_or_name(devices: str) -> int | str:
    try:
        return int(devices)
    except ValueError:
        return devices
