"""The folder of a training run: what is in it, who works in it, and whether it can go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .checkpoint import check_format
from .settings import TrainingError, settings_differ

__all__ = ["LOGS", "RESUME", "check_same_format", "check_same_settings", "only_run_in"]

# Lightning's checkpoint: weights, optimiser, schedule, place in the data.
RESUME = "last.ckpt"
# The folder of logs, for TensorBoard and as CSV.
LOGS = "logs"
_LOCK = ".lock"


def check_same_format(path: Path, before: dict[str, Any]) -> None:
    """Raise if a run was written by another relpos than this one can resume.

    Args:
        path: of the file that says so, for the message.
        before: what `model.json` says.

    Raises:
        TrainingError: with both formats.
    """
    if reason := check_format(before):
        raise TrainingError(f"{path}: {reason}; choose another --name, or delete that folder")


def check_same_settings(folder: Path, before: dict[str, Any], about: dict[str, Any]) -> None:
    """Raise if the run in a folder is not the one that is asked for.

    Args:
        folder: of the run, for the message.
        before: what `model.json` says, or a part of it.
        about: what it is to say.

    Raises:
        TrainingError: with the first setting that differs.
    """
    # Runs from before it was kept do not say their precision.
    known = {"precision": about.get("precision")} | before
    if difference := settings_differ(known, about):
        raise TrainingError(
            f"{folder}: holds a run with other settings ({difference}); "
            "choose another --name, or delete that folder"
        )


@contextmanager
def only_run_in(folder: Path) -> Iterator[None]:
    """Keep every other run out of the folder; the system lets go even of what was killed.

    Args:
        folder: of the run; made if it is missing.

    Raises:
        TrainingError: if another run is at work in it.
    """
    try:
        import fcntl  # noqa: PLC0415
    except ImportError:
        # Not on Windows.
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TrainingError(
                f"{folder}: another run is at work in it; wait for it, or choose another --name"
            ) from None
        except OSError:
            # Some network drives know no locks.
            pass
        yield
