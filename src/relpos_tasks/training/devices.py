"""Where to train, in Lightning's own words."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import lightning
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.accelerators import (
    Accelerator,
    CPUAccelerator,
    CUDAAccelerator,
    MPSAccelerator,
    XLAAccelerator,
)

from .context_parallel import ContextParallelStrategy
from .settings import TrainingError

__all__ = ["Devices", "trainer_on"]

_ACCELERATORS: dict[str, tuple[type[Accelerator], ...]] = {
    "cpu": (CPUAccelerator,),
    "gpu": (CUDAAccelerator, MPSAccelerator),
    "cuda": (CUDAAccelerator,),
    "mps": (MPSAccelerator,),
    "tpu": (XLAAccelerator,),
}
_PRECISIONS = ("32-true", "bf16-mixed", "16-mixed", "64-true", "bf16-true", "16-true")
# Lightning's earlier names, which it still takes.
_EARLIER_PRECISIONS = {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed", "64": "64-true"}


@dataclass(frozen=True)
class Devices:
    """Where to train, in Lightning's own words.

    Args:
        accelerator: `"auto"`, `"cpu"`, `"gpu"`, `"cuda"`, `"mps"`, `"tpu"`.
        devices: how many, or which, or `"auto"`.
        precision: `"32-true"`, `"bf16-mixed"`, `"16-mixed"`, `"64-true"`, `"bf16-true"`,
            `"16-true"`; of Lightning's earlier names the one of today is kept.
        context_parallel: how many of them share the tokens of a sequence.
    """

    accelerator: str = "auto"
    devices: str = "1"
    precision: str = "32-true"
    context_parallel: int = 1

    def __post_init__(self) -> None:
        precision = _EARLIER_PRECISIONS.get(self.precision, self.precision)
        object.__setattr__(self, "precision", precision)


def trainer_on(devices: Devices, **options: Any) -> lightning.Trainer:
    """A trainer that says nothing of its own and writes no checkpoint of its own.

    Args:
        devices: where to train.
        options: more arguments of Lightning's trainer.

    Raises:
        TrainingError: if a name is unknown, this machine has no such accelerator, or Lightning
            refuses what is left, in its words.
    """
    _check_names(devices)
    if devices.context_parallel > 1:
        options["strategy"] = ContextParallelStrategy(devices.context_parallel)
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
        raise TrainingError(
            f"--accelerator {devices.accelerator} --devices {devices.devices} --precision "
            f"{devices.precision}: refused by Lightning: {' '.join(str(error).split())}"
        ) from error


def _check_names(devices: Devices) -> None:
    name = devices.accelerator
    if name != "auto" and name not in _ACCELERATORS:
        raise TrainingError(
            f"--accelerator: must be one of auto, {', '.join(_ACCELERATORS)}, got {name!r}"
        )
    present = [
        known
        for known, accelerators in _ACCELERATORS.items()
        if any(accelerator.is_available() for accelerator in accelerators)
    ]
    if name not in ("auto", *present):
        raise TrainingError(
            f"--accelerator: must be one that this machine has ({', '.join(present)}), got {name!r}"
        )
    if devices.precision not in _PRECISIONS:
        raise TrainingError(
            f"--precision: must be one of {', '.join(_PRECISIONS)}, got {devices.precision!r}"
        )


def _number_or_name(devices: str) -> int | str:
    try:
        return int(devices)
    except ValueError:
        return devices
