"""What can be refused before the data is read: devices, sizes, and the folder of a run."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.utilities import rank_zero_only

from ..files import check_writable
from ..machine import memory_bytes
from .averaging import check_averaging
from .checkpoint import ABOUT, WEIGHTS, saved_about
from .devices import Devices, trainer_on
from .run_folder import LOGS, RESUME, check_same_format, check_same_settings, only_run_in
from .settings import TrainingError

__all__ = ["check_data", "check_devices", "check_folder", "check_memory"]

# How many; or which, with a comma behind a single one.
_DEVICES = r"auto|-1|[1-9]\d{0,4}|\d{1,5}(,\d{1,5})+,?|\d{1,5},"


def check_devices(devices: Devices, *, batch: int | None, averaging: float | None = None) -> None:
    """Raise unless the devices are there, share a batch, and average as precisely as is needed.

    Args:
        devices: where to train.
        batch: sequences per step, over all devices together; None where devices need not have
            equally many.
        averaging: the decay of the average of the weights; None where there is none.

    Raises:
        TrainingError: otherwise.
    """
    # Lightning makes a list of so many, and fails at a number that memory cannot hold.
    if not re.fullmatch(_DEVICES, devices.devices, re.ASCII):
        raise TrainingError(
            "--devices: must be how many, or which as numbers with commas, or -1 for all, or auto, "
            f"got {devices.devices!r}"
        )
    trainer = trainer_on(devices, logger=False, enable_progress_bar=False)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if isinstance(trainer.accelerator, CPUAccelerator) and trainer.num_devices > (cores or 1):
        raise TrainingError(
            f"--devices: must be at most the {cores} processor cores, got {devices.devices}"
        )
    shared = devices.context_parallel
    if trainer.world_size % shared:
        raise TrainingError(
            f"--context-parallel: must divide the {trainer.world_size} devices, got {shared}; "
            "try --devices"
        )
    groups = trainer.world_size // shared
    if batch is not None and batch % groups:
        of = "devices" if shared == 1 else f"groups of {shared} devices"
        raise TrainingError(f"--batch: must be a multiple of the {groups} {of}, got {batch}")
    check_averaging(averaging, precision=devices.precision)


def check_memory(numbers: int, *, what: str, way_out: str, available: int | None = None) -> None:
    """Raise if so many numbers of two bytes cannot be held at once.

    Args:
        numbers: the fewest that are needed.
        what: needs them, e.g. `"a step of 8 sequences of 256 tokens"`.
        way_out: the options to change.
        available: bytes; None takes the memory of this machine, or of its GPUs if they have more.

    Raises:
        TrainingError: with both sizes.

    >>> check_memory(10**6, what="a step", way_out="a smaller --batch", available=10**9)
    """
    available = memory_bytes() if available is None else available
    if 2 * numbers > available:
        raise TrainingError(
            f"{what} must fit the memory of {_gib(available)}, and takes at least "
            f"{_gib(2 * numbers)}; choose {way_out}"
        )


def check_folder(folder: Path, settings: dict[str, Any], *, precision: str) -> None:
    """Raise if a run cannot begin or go on in a folder.

    Args:
        folder: of the run; it need not be there.
        settings: as `model.json` of the run is to hold them.
        precision: of the training, as Lightning names it.

    Raises:
        TrainingError: if another run is at work in it, or it holds one of another
            format or with other settings.
        ValueError: if a file of the run cannot be written.
    """
    # The first process is at work there when Lightning starts those of the other devices.
    if rank_zero_only.rank:
        return
    for name in (ABOUT, WEIGHTS, RESUME, f"{LOGS}/metrics.csv"):
        check_writable(folder / name)
    if not folder.exists():
        return
    with only_run_in(folder):
        pass
    if not (folder / RESUME).exists():
        return
    about = saved_about(folder)
    if "settings" not in about:
        return
    check_same_format(folder / ABOUT, about)
    before = {name: about[name] for name in ("settings", "precision") if name in about}
    check_same_settings(folder, before, {"settings": settings, "precision": precision})


def check_data(folder: Path, *, name: str, digest: str) -> None:
    """Raise if a folder holds a training on other data.

    Args:
        folder: of the training; it need not be there.
        name: of the data.
        digest: of the data.

    Raises:
        TrainingError: with the names of both.
    """
    before = saved_about(folder).get("data")
    if not (folder / RESUME).exists() or not isinstance(before, dict):
        return
    if before.get("digest") != digest:
        raise TrainingError(
            f"{folder}: holds a training on other data, {before.get('name')} "
            f"({before.get('digest')}), got {name} ({digest}); choose another --name, or delete "
            "that folder"
        )


def _gib(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB"
