"""Random inputs for a model of transformers, of a given length."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .image_samples import image_inputs, patch_inputs
from .sound_samples import feature_inputs, wave_inputs
from .text_samples import decoder_inputs, text_inputs

__all__ = ["make_inputs"]

# By the name of a model's main input.
_MAKERS: dict[str, Callable[..., tuple[dict[str, Tensor], str]]] = {
    "input_ids": text_inputs,
    "input_features": feature_inputs,
    "audio_mel": partial(feature_inputs, name="audio_mel"),
    "hidden_states": partial(feature_inputs, name="hidden_states"),
    "input_values": wave_inputs,
    "pixel_values": image_inputs,
    "flattened_patches": patch_inputs,
}
# What a decoder is given at most, in tokens or frames.
_DECODED = 128


def make_inputs(model: nn.Module, length: int | None) -> tuple[dict[str, Tensor], str]:
    """Inputs for one sequence or image, and its length in words.

    Args:
        model: of transformers.
        length: in what the model reads: tokens, frames of features, samples of audio, patches;
            None: 2048 tokens or patches, or 30 seconds, or all that the model has room for. Images
            have the size that the model is for.

    Raises:
        ValueError: if the model reads something else, its images are given a length, or its tokens
            one beyond its positions.
    """
    found: Any = model
    taken = list(inspect.signature(found.forward).parameters)
    # Encoders within larger models often leave it at the name that most have.
    name = found.main_input_name if found.main_input_name in taken else taken[0]
    if name not in _MAKERS:
        raise ValueError(
            f"adapt: a check must be of a model that reads {', '.join(_MAKERS)}, got "
            f"{type(model).__name__}, which reads {name}"
        )
    generator = torch.Generator().manual_seed(0)
    inputs, words = _MAKERS[name](found, length, generator)
    inputs |= decoder_inputs(found, min(_count(inputs), _DECODED), generator)
    _check_needs(found, inputs)
    return inputs, words


def _count(inputs: dict[str, Tensor]) -> int:
    """How many tokens, frames, samples or patches there are; of an image any number goes."""
    main = next(iter(inputs.values()))
    return _DECODED if main.ndim == 4 else main.shape[1]


def _check_needs(model: Any, given: dict[str, Tensor]) -> None:
    """Refuse a model that cannot be called with these alone.

    Raises:
        ValueError: naming what it needs beside them.
    """
    needed = {
        name
        for name, parameter in inspect.signature(model.forward).parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    }
    if missing := sorted(needed - set(given)):
        raise ValueError(
            f"adapt: a check must be of a model that needs {', '.join(given)} alone, got "
            f"{type(model).__name__}, which needs {', '.join(missing)}"
        )
