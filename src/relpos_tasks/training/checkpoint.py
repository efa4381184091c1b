"""A trained model of any task on disk: `model.safetensors`, and `model.json` beside it.

`model.json` holds everything that is needed to use the weights again: the model's configuration
(`"model"`), what its task adds, such as the vocabulary, the data protocol and the training
settings, the versions that made them, and the number of this format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load as weights_of
from safetensors.torch import save as bytes_of
from torch import nn

from ..files import write_bytes, write_json
from ..models.configured import ConfiguredModel, ModelConfig

__all__ = [
    "ABOUT",
    "FORMAT",
    "WEIGHTS",
    "Checkpoint",
    "CheckpointError",
    "check_format",
    "check_state",
    "load",
    "repair",
    "save_about",
    "save_weights",
    "saved_about",
]

WEIGHTS = "model.safetensors"
ABOUT = "model.json"
# Changes whenever an earlier checkpoint would be read wrongly or not at all.
FORMAT = 3
# What Lightning trains in; anything else was not written by a training.
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
# What batch norms count batches by, and averages the steps.
_COUNTERS, _COUNTER_DTYPES = ("num_batches_tracked", "n_averaged"), (torch.int64,)

ModelT = TypeVar("ModelT", bound=ConfiguredModel)


class CheckpointError(ValueError):
    """A checkpoint is missing, broken, or does not fit; the message is one line."""


@dataclass(frozen=True)
class Checkpoint(Generic[ModelT]):
    """A model on the CPU in evaluation mode, and what `model.json` says about it."""

    model: ModelT
    about: dict[str, Any]
    folder: Path


def save_about(folder: str | Path, about: dict[str, Any]) -> None:
    """Write `model.json`, with the number of this format.

    Args:
        folder: the checkpoint's folder.
        about: JSON; `about["model"]` are the fields of the model's configuration.
    """
    write_json(Path(folder) / ABOUT, {"format": FORMAT} | about)


def save_weights(folder: str | Path, model: nn.Module) -> None:
    """Write `model.safetensors`.

    Args:
        folder: the checkpoint's folder.
        model: the model.
    """
    write_bytes(Path(folder) / WEIGHTS, _weights_file(model.state_dict()))


def repair(
    folder: Path, about: dict[str, Any], model: nn.Module, kept: Mapping[str, torch.Tensor]
) -> None:
    """Write again what of both files is lost or cannot be read.

    Args:
        folder: the checkpoint's folder.
        about: what `model.json` says.
        model: the model.
        kept: what `last.ckpt` has of the task, whose model may have been trained in more bits.
    """
    if not saved_about(folder):
        save_about(folder, about)
    try:
        found = weights_of((folder / WEIGHTS).read_bytes())
        sizes = {name: tensor.shape for name, tensor in found.items()}
    except (OSError, SafetensorError, KeyError, ValueError):
        sizes = {}
    state = model.state_dict()
    if sizes != {name: tensor.shape for name, tensor in state.items()}:
        dtype = next(x.dtype for x in kept.values() if x.is_floating_point())
        for name, x in state.items():
            as_trained = kept.get(f"model.{name}")
            if as_trained is not None and torch.equal(as_trained.to(x.dtype), x.cpu()):
                state[name] = as_trained
            elif x.is_floating_point():  # an average of the steps
                state[name] = x.to(dtype)
        write_bytes(folder / WEIGHTS, _weights_file(state))


def _weights_file(state: Mapping[str, torch.Tensor]) -> bytes:
    tensors = {name: x.detach().cpu().contiguous() for name, x in state.items()}
    return bytes_of(tensors, metadata={"format": "pt"})


def load(
    path: str | Path, model_class: type[ModelT], *, task: str | None = None
) -> Checkpoint[ModelT]:
    """The model that a training run left behind.

    Args:
        path: the folder, or the `.safetensors` file in it.
        model_class: of the model, such as `DecoderLM`.
        task: that it must have been trained for, such as `"music"`; None takes any.

    Raises:
        CheckpointError: if there is no checkpoint, or it is broken, of another format or task.
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
    if task is not None and (of := about.get("task", task)) != task:
        raise CheckpointError(f"{path}: must be a checkpoint of the {task} task, got one of {of}")
    try:
        state = weights_of(weights.read_bytes())
    except (SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(f"{weights}: not a safetensors file: {_line(error)}") from error
    try:
        config = model_class.config_class.from_dict(about["model"])
        expected = _sizes(model_class, config, max_layers=len(state))
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise CheckpointError(f"{beside}: describes no model: {_line(error)}") from error
    check_state(weights, expected, state)
    model = model_class(config)
    model.load_state_dict(state)
    return Checkpoint(model.eval(), about, folder)


def check_format(about: dict[str, Any]) -> str | None:
    """Why what `model.json` says cannot be used by this relpos; None if it can.

    Args:
        about: what it says.

    >>> check_format({"format": FORMAT})
    >>> check_format({"model": {}})
    'was written by an earlier relpos (no format number, this one reads 3)'
    """
    given = about.get("format")
    if given == FORMAT:
        return None
    age = "a newer" if isinstance(given, int) and given > FORMAT else "an earlier"
    number = "no format number" if given is None else f"format {given!r}"
    return f"was written by {age} relpos ({number}, this one reads {FORMAT})"


def saved_about(folder: Path) -> dict[str, Any]:
    """What `model.json` says; nothing where it cannot be read, since `last.ckpt` says it too.

    Args:
        folder: of a training; it need not be there.
    """
    try:
        return dict(json.loads((folder / ABOUT).read_text("utf-8")))
    except (OSError, TypeError, ValueError, RecursionError):
        return {}


def _read_about(path: Path) -> dict[str, Any]:
    try:
        about = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not JSON: {_line(error)}") from error
    if not isinstance(about, dict) or not isinstance(about.get("model"), dict):
        raise CheckpointError(f"{path}: must be an object with 'model', got {str(about)[:60]!r}")
    if reason := check_format(about):
        raise CheckpointError(f"{path}: {reason}; use that relpos, or train the model again")
    return about


def _sizes(
    model_class: type[ConfiguredModel], config: ModelConfig, *, max_layers: int
) -> dict[str, tuple[int, ...]]:
    """The sizes of a model's tensors, found without taking memory for them."""
    if config.layers > max_layers:
        raise ValueError(f"layers must be those of {WEIGHTS}, got {config.layers}")
    with torch.device("meta"):
        model = model_class(config)
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
    if not isinstance(state, Mapping) or not all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in state.items()
    ):
        raise CheckpointError(f"{path}: must hold tensors by their names")
    given = {name: tuple(tensor.shape) for name, tensor in state.items()}
    for name in sorted(expected.keys() | given.keys()):
        if expected.get(name) != given.get(name):
            raise CheckpointError(
                f"{path}: {name} must be {expected.get(name, 'absent')} by {ABOUT}, "
                f"got {given.get(name, 'nothing')}"
            )
        dtypes = _COUNTER_DTYPES if name.endswith(_COUNTERS) else _DTYPES
        if state[name].dtype not in dtypes:
            allowed = ", ".join(_dtype_name(dtype) for dtype in dtypes)
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
