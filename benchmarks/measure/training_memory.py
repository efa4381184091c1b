"""What the training of a scheme adds to the memory of a process, in a fresh one for each."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from unittest.mock import patch

from relpos_tasks.machine import status_mib

from ..workloads.training_jobs import TRAINING_JOBS
from .training_steps import TrainingSteps

__all__ = ["growth_of_training"]

# The optimiser's state is there from the second step on.
_STEPS = 2
# glibc gives back at once what is larger than this many bytes: what is free does not count. By
# default the bound moves with what was freed before, and figures with it.
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


def growth_of_training(task: str, preset: str, schemes: Iterable[str]) -> dict[str, float | None]:
    """MiB that model, optimiser, gradients and activations need at most, by scheme.

    Args:
        task: a name in `TRAINING_JOBS`.
        preset: of its sizes.
        schemes: names of schemes.

    Returns:
        None for each where the system does not say how much memory a process had; Linux does.
    """
    schemes = list(schemes)
    # Processes are forked from one that has imported everything and computed nothing.
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with (
        patch.dict(os.environ, _MALLOC),
        ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as fresh,
    ):
        found = fresh.map(_growth, [task] * len(schemes), [preset] * len(schemes), schemes)
        return dict(zip(schemes, found, strict=True))


def _growth(task: str, preset: str, scheme: str) -> float | None:
    # The first run loads the libraries and starts the threads.
    _train(task, "tiny", scheme)
    try:
        before = status_mib("VmRSS")
    except OSError:
        return None
    _train(task, preset, scheme)
    return status_mib("VmHWM") - before


def _train(task: str, preset: str, scheme: str) -> None:
    job = TRAINING_JOBS[task](preset)
    TrainingSteps(job.task(scheme)).run(job.batches(_STEPS))
