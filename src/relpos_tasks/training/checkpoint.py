"""A trained language model on disk: `model.safetensors`, and `model.json` beside it.

`model.json` holds everything that is needed to use the weights again: the model's configuration,
the vocabulary, the data protocol, the training settings and the versions that made them.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as weights_of
from safetensors.torch import save as bytes_of

from ..files import write_bytes, write_json
from ..models.decoder import DecoderConfig, DecoderLM

__all__ = [
    "ABOUT",
    "WEIGHTS",
    "Checkpoint",
    "CheckpointError",
    "check_state",
    "load",
    "save_about",
    "save_weights",
    "versions",
]

WEIGHTS = "model.safetensors"
ABOUT = "model.json"
# What Lightning trains in; anything else was not written by a training.
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


class CheckpointError(ValueError):
    """A checkpoint is missing, broken, or does not fit; the message is one line."""


@dataclass(frozen=True)
class Checkpoint:
    """A model on the CPU in evaluation mode, and what `model.json` says about it."""

    model: DecoderLM
    about: dict[str, Any]
    folder: Path


def save_about(folder: str | Path, about: dict[str, Any]) -> None:
    """Write `model.json`.

    Args:
        folder: the checkpoint's folder.
        about: JSON; `about["model"]` are the fields of a `DecoderConfig`.
    """
    write_json(Path(folder) / ABOUT, about)


def save_weights(folder: str | Path, model: DecoderLM) -> None:
    """Write `model.safetensors`.

    Args:
        folder: the checkpoint's folder.
        model: the model.
    """
    state = {
        name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()
    }
    write_bytes(Path(folder) / WEIGHTS, bytes_of(state, metadata={"format": "pt"}))


def load(path: str | Path) -> Checkpoint:
    """The model that a training run left behind.

    Args:
        path: the folder, or the `.safetensors` file in it.

    Raises:
        CheckpointError: if there is no checkpoint, or it is broken.
    """
    path = Path(path)
    folder = path.parent if path.suffix == ".safetensors" else path
    if not path.exists():
        raise CheckpointError(f"{path}: no such file or folder")
    if path.is_file() and path.suffix != ".safetensors":
        raise CheckpointError(f"{path}: must be a folder with {WEIGHTS}, or that file")
    weights, beside = (path if path.is_file() else folder / WEIGHTS), folder / ABOUT
    for needed in (weights, beside):
        if not needed.is_file():
            raise CheckpointError(
                f"{path}: is not a checkpoint, {needed.name} is missing{_hint(folder)}"
            )
    about = _read_about(beside)
    try:
        state = weights_of(weights.read_bytes())
    except (SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(f"{weights}: not a safetensors file: {_line(error)}") from error
    try:
        config = DecoderConfig.from_dict(about["model"])
        expected = _sizes(config, most_layers=len(state))
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise CheckpointError(f"{beside}: describes no model: {_line(error)}") from error
    check_state(weights, expected, state)
    model = DecoderLM(config)
    model.load_state_dict(state)
    return Checkpoint(model.eval(), about, folder)


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a result depends on."""
    found = {"python": platform.python_version()}
    for package in ("relpos", "torch", "lightning", "numpy", "music21", "verovio"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _read_about(path: Path) -> dict[str, Any]:
    try:
        about = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not JSON: {_line(error)}") from error
    if not isinstance(about, dict) or not isinstance(about.get("model"), dict):
        raise CheckpointError(f"{path}: must be an object with 'model', got {str(about)[:60]!r}")
    return about


def _sizes(config: DecoderConfig, *, most_layers: int) -> dict[str, tuple[int, ...]]:
    """The sizes of a model's tensors, found without taking memory for them."""
    if config.layers > most_layers:
        raise ValueError(f"layers must be those of {WEIGHTS}, got {config.layers}")
    with torch.device("meta"):
        model = DecoderLM(config)
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def check_state(
    path: Path, expected: Mapping[str, tuple[int, ...]], state: Mapping[str, torch.Tensor]
) -> None:
    """Raise unless a state has the tensors of a model: their names and sizes, real and finite.

    Args:
        path: of the state, for the message.
        expected: the sizes by name.
        state: the tensors by name.

    Raises:
        CheckpointError: otherwise.
    """
    given = {name: tuple(tensor.shape) for name, tensor in state.items()}
    for name in sorted(expected.keys() | given.keys()):
        if expected.get(name) != given.get(name):
            raise CheckpointError(
                f"{path}: {name} must be {expected.get(name, 'absent')} by {ABOUT}, "
                f"got {given.get(name, 'nothing')}"
            )
        if state[name].dtype not in _DTYPES:
            allowed = ", ".join(_dtype_name(dtype) for dtype in _DTYPES)
            raise CheckpointError(
                f"{path}: {name} must be one of {allowed}, got {_dtype_name(state[name].dtype)}"
            )
        # In the dtype of the model, for which a double may be too large.
        if not state[name].float().isfinite().all():
            raise CheckpointError(f"{path}: {name} must be finite, got NaN or infinity")


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _hint(folder: Path) -> str:
    """Where the checkpoint may be instead: a comparison holds one per position."""
    inside = sorted(file.parent.name for file in folder.glob(f"*/{WEIGHTS}"))
    return (
        f"; did you mean one of {', '.join(str(folder / name) for name in inside)}?"
        if inside
        else ""
    )


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
