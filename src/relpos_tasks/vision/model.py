"""A trained pixel classifier read back, for the digits that it was trained on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..models.pixel_classifier import PixelClassifier
from ..training.checkpoint import CheckpointError, load
from .digits import DigitSplit
from .settings import VisionSettings

__all__ = ["VisionModel", "check_digits", "load_vision"]

# Of a test, to measure on: what `relpos vision evaluate --canvases` takes at most.
_MOST_CANVASES = 100_000
# Labels are digits.
CLASSES = 10


@dataclass(frozen=True, eq=False)
class VisionModel:
    """A model from a checkpoint, and what `model.json` says about it.

    Args:
        model: on the CPU, in evaluation mode.
        canvases: of each test, to measure on.
        about: what `model.json` says.
        folder: of the checkpoint.
    """

    model: PixelClassifier
    canvases: int
    about: dict[str, Any]
    folder: Path


def load_vision(path: str | Path) -> VisionModel:
    """The model that `train_position` left behind.

    Args:
        path: its folder, or the `.safetensors` file in it.

    Raises:
        CheckpointError: if it is not a checkpoint of this task.
    """
    found = load(path, PixelClassifier, task="vision")
    classes, data = found.model.config.classes, found.about.get("data")
    # A checkpoint from before they were kept says nothing of them.
    measuring = found.about.get("measuring", {"canvases": VisionSettings().canvases})
    canvases: Any = measuring.get("canvases") if isinstance(measuring, dict) else None
    wrong = None
    if classes != CLASSES:
        wrong = f"model.classes must be {CLASSES}, got {classes}"
    elif not isinstance(data, dict) or not isinstance(data.get("digest"), str):
        wrong = "data.digest must be text, got none"
    elif type(canvases) is not int or not 1 <= canvases <= _MOST_CANVASES:
        wrong = f"measuring.canvases must be in 1..{_MOST_CANVASES:,}, got {canvases!r}"
    if wrong is not None:
        raise CheckpointError(f"{path}: is not a checkpoint of the vision task: {wrong}")
    return VisionModel(found.model, canvases, found.about, found.folder)


def check_digits(vision: VisionModel, split: DigitSplit, path: str | Path) -> None:
    """Refuse to measure a model on other images than those that were held out from it.

    Args:
        vision: the model.
        split: the digits.
        path: of the checkpoint, for the message.

    Raises:
        CheckpointError: if the model was trained beside other images.
    """
    digest = vision.about["data"]["digest"]
    if digest != split.digest:
        raise CheckpointError(
            f"{path}: was trained beside other images ({digest}) than those of this scikit-learn "
            f"({split.digest})"
        )
