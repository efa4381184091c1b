"""What is measured of one model of transformers, and inputs of a batch of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

__all__ = [
    "AdaptedModel",
    "LongInput",
    "audio",
    "cast",
    "draw",
    "features",
    "ids",
    "image",
    "small_patches",
]

Inputs = Callable[[int], dict[str, Any]]


@dataclass(frozen=True)
class AdaptedModel:
    """One model, of which the second layer is timed.

    Args:
        family: its name in `relpos.adapters.families()`; empty for a model without relative
            positions, which attends by `attn_implementation="relpos"`.
        name: of the family and the size, as pages print it.
        build: the model, with so many layers.
        inputs: of a batch of one with so many positions in a layer.
        unit: what a position is.
        lengths: at which time is measured; the first is a short input.
        memory: lengths at which peak memory is measured.
        layer: the name of the second layer.
        attention: the name of its attention, below the layer.
        wanted: the least speed-up of the attention module, by length.
        implementations: of the original that are right; all that it has, if none is named.
    """

    family: str
    name: str
    build: Callable[[int], nn.Module]
    inputs: Inputs
    unit: str
    lengths: tuple[int, ...]
    memory: tuple[int, ...]
    layer: str
    attention: str
    wanted: dict[int, float]
    implementations: tuple[str, ...] = ()


@dataclass(frozen=True)
class LongInput:
    """One pass of a model over an input of a length that the original cannot take.

    Args:
        name: of the input, as pages print it.
        model: by its name.
        length: in the model's unit.
        layers: of the model.
        all_layers: that the published model has.
        dtype: of its parameters and inputs.
    """

    name: str
    model: str
    length: int
    layers: int
    all_layers: int
    dtype: str = "float32"

    @property
    def torch_dtype(self) -> torch.dtype:
        """`dtype` as torch calls it."""
        return getattr(torch, self.dtype)


def draw(model: nn.Module) -> nn.Module:
    """Give every parameter numbers that matter: some models begin with zeros."""
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            fan = max(parameter[0].numel(), 1)
            nn.init.normal_(parameter, std=fan**-0.5 if "embed" not in name else 0.1)
        elif "norm" not in name.lower():
            nn.init.normal_(parameter, std=0.02)
    return model.eval()


def cast(inputs: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """A model's inputs, with floating numbers in this dtype."""
    return {
        name: x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        for name, x in inputs.items()
    }


def on_device(inputs: dict[str, Any], device: str) -> dict[str, Any]:
    """A model's inputs, with their tensors on this device."""
    return {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in inputs.items()}


def ids(length: int) -> dict[str, Any]:
    """Tokens of a vocabulary of 1000."""
    return {"input_ids": torch.arange(length)[None] % 900 + 10}


def features(width: int, times: int = 1, *, name: str = "input_features") -> Inputs:
    """Frames of audio features, so many for each position."""

    def inputs(length: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(1)
        return {name: torch.randn(1, times * length, width, generator=generator)}

    return inputs


def audio(stride: int, extra: int) -> Inputs:
    """Samples of sound, `stride` for each position."""

    def inputs(length: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(1)
        return {"input_values": torch.randn(1, stride * length + extra, generator=generator)}

    return inputs


def image(length: int, patch: int = 16) -> dict[str, Any]:
    """A square image, whose patches have so many pixels a side."""
    side = patch * round(length**0.5)
    generator = torch.Generator().manual_seed(1)
    return {"pixel_values": torch.randn(1, 3, side, side, generator=generator)}


def small_patches(length: int) -> dict[str, Any]:
    """A square image, whose patches have 4 x 4 pixels."""
    return image(length, 4)
