"""One training run in a folder: begun, or taken up again where it was stopped."""

from __future__ import annotations

import json
import pickle
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.utilities.exceptions import SIGTERMException

from relpos.errors import is_out_of_memory

from ..files import remove_partial
from ..stopping import ending_child_processes
from .averaging import check_averaging
from .checkpoint import ABOUT, FORMAT, check_state, repair, save_about
from .checkpoint_writer import AtomicCheckpointIO, CheckpointWriter, checkpoint_io
from .devices import Devices, trainer_on
from .last_validation import LastValidation
from .progress_bar import TrainingProgress
from .run_folder import LOGS, RESUME, check_same_format, check_same_settings, only_run_in
from .settings import TrainingError
from .task import Task

__all__ = ["fit"]

# What else of Lightning's and of ours must be in it to go on.
_PARTS = ("optimizer_states", "lr_schedulers", "loops", "relpos")
# What reading a file raises that is no checkpoint of ours.
_BROKEN = (
    AttributeError,
    EOFError,
    IndexError,
    KeyError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    pickle.UnpicklingError,
)


def fit(
    task: Task,
    data: lightning.LightningDataModule,
    *,
    folder: Path,
    about: dict[str, Any],
    devices: Devices,
    title: str = "",
) -> None:
    """Train to the last step, from the last checkpoint in the folder if there is one.

    The folder then holds `model.safetensors` and `model.json` (the weights so far), `last.ckpt`
    (all that is needed to go on) and `logs` for TensorBoard and as CSV.

    Args:
        task: what to train; afterwards its model, on the CPU, has the weights that were written,
            and it holds the curves.
        data: gives the batches; its order must be a function of the seed and the step.
        folder: of this run.
        about: what `model.json` is to say.
        devices: where to train.
        title: what the progress bar says, and the seed if it is not 0.

    Raises:
        TrainingError: if the folder holds a run with other settings, another run is at work in
            it, Lightning refuses, the precision is too low for an average, a step does not fit the
            memory, or the weights become NaN.
        OSError: if a file cannot be written, with its name; the checkpoints stay.
        KeyboardInterrupt: on Ctrl-C; the checkpoints stay.
        SystemExit: with status 143, on SIGTERM; the checkpoints stay.
    """
    check_averaging(task.settings.averaging, precision=devices.precision)
    about = {"format": FORMAT, "precision": devices.precision} | about
    if _finished(task, folder, about):
        return
    trainer = _trainer(task, CheckpointWriter(folder, about), devices, title)
    with only_run_in(folder) if trainer.is_global_zero else nullcontext():
        if trainer.is_global_zero:
            save_about(folder, about)
            remove_partial(folder)
        checkpoint = folder / RESUME
        _interruptible(trainer, task, data, checkpoint if checkpoint.exists() else None)
    task.finish()


def _finished(task: Task, folder: Path, about: dict[str, Any]) -> bool:
    """Read the last checkpoint; if it is that of the last step, take everything from it."""
    checkpoint = folder / RESUME
    if not checkpoint.exists():
        return False
    try:
        kept = torch.load(checkpoint, map_location="cpu", weights_only=True)
        before, step = dict(json.loads(kept[ABOUT])), kept["global_step"]
        state, whole = kept["state_dict"], all(bool(kept[part]) for part in _PARTS)
    except _BROKEN as error:
        raise _unreadable(checkpoint) from error
    check_same_format(checkpoint, before)
    if not isinstance(step, int) or not whole:
        raise _unreadable(checkpoint)
    check_same_settings(folder, before, about)
    sizes = {name: tuple(tensor.shape) for name, tensor in task.state_dict().items()}
    check_state(checkpoint, sizes, state)
    if step < task.settings.steps:
        return False
    task.load_state_dict(state)
    try:
        task.on_load_checkpoint(kept)
    except _BROKEN as error:
        raise _unreadable(checkpoint) from error
    task.finish()
    repair(folder, before, task.model, state)
    return True


def _unreadable(checkpoint: Path | None) -> TrainingError:
    return TrainingError(f"{checkpoint}: cannot be read; delete it to begin anew")


def _trainer(
    task: Task, checkpoints: CheckpointWriter, devices: Devices, title: str
) -> lightning.Trainer:
    settings, folder = task.settings, checkpoints.folder
    if settings.seed:
        title = f"{title} (seed {settings.seed})"
    version = len(list((folder / LOGS).glob("version_*")))
    every = task.curve_every
    return trainer_on(
        devices,
        max_steps=settings.steps,
        gradient_clip_val=settings.clip,
        val_check_interval=min(settings.valid_every, settings.steps),
        log_every_n_steps=every,
        num_sanity_val_steps=0,
        logger=[
            CSVLogger(folder, name=LOGS, version=version, flush_logs_every_n_steps=every),
            TensorBoardLogger(folder, name=LOGS, version=version),
        ],
        callbacks=[checkpoints, LastValidation(), TrainingProgress(title)],
        plugins=[AtomicCheckpointIO()],
        use_distributed_sampler=False,
    )


def _interruptible(
    trainer: lightning.Trainer,
    task: Task,
    data: lightning.LightningDataModule,
    resume: Path | None,
) -> None:
    """Lightning turns Ctrl-C into exit status 1, ignores any further one, and SIGTERM into 0."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if main else None
    try:
        with (
            ending_child_processes(lambda: _end_child_processes(trainer)),
            _failures_in_words(task, trainer, resume),
            warnings.catch_warnings(),
        ):
            # Lightning's own use of torch, in 2.6 with torch 2.13.
            warnings.filterwarnings("ignore", message=".*isinstance.treespec, LeafSpec.*")
            trainer.fit(task, datamodule=data, ckpt_path=resume, weights_only=True)
    except SystemExit as stopped:
        if isinstance(stopped.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        if isinstance(stopped, SIGTERMException):
            raise SystemExit(128 + signal.SIGTERM) from None
        raise
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)


def _end_child_processes(trainer: lightning.Trainer) -> None:
    """End the processes of the other devices, which Lightning starts."""
    if (launcher := trainer.strategy.launcher) is not None:
        launcher.kill(signal.SIGTERM)


@contextmanager
def _failures_in_words(
    task: Task, trainer: lightning.Trainer, resume: Path | None
) -> Iterator[None]:
    """Name the file or the option: a broken checkpoint, a disk or memory that is too small."""
    before = threading.excepthook
    # The thread that writes TensorBoard's file tells of a full disk, and so does what it fails.
    threading.excepthook = lambda args: (
        None if isinstance(args.exc_value, OSError) else before(args)
    )
    try:
        yield
    except OSError as error:
        # Checkpoints name themselves.
        error.filename = error.filename or str(trainer.log_dir)
        raise
    except (MemoryError, *_BROKEN) as error:
        if is_out_of_memory(error):
            raise TrainingError(
                f"not enough memory for a step with --batch {task.settings.batch}; "
                "choose a smaller one"
            ) from error
        if checkpoint_io(trainer).restoring:
            raise _unreadable(resume) from error
        raise
    finally:
        threading.excepthook = before
