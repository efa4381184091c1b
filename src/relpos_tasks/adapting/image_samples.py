"""Random images, and patches of images, for a model of vision."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

__all__ = ["image_inputs", "patch_inputs"]

# Pix2Struct's own number, where nothing else is asked for.
_PATCHES = 2048
# Images beside SegGPT's, whose size is that of one below its prompt.
_PROMPTS = ("prompt_pixel_values", "prompt_masks")


def image_inputs(
    model: Any, length: int | None, generator: torch.Generator
) -> tuple[dict[str, Tensor], str]:
    """An image of the size that the model is for, and a prompt where one is needed; in words.

    Args:
        model: of transformers.
        length: None.
        generator: of the random numbers.

    Raises:
        ValueError: if there is a length, or the model does not say its size.
    """
    if length is not None:
        raise ValueError("--length: must be left out for a model of images, whose size is its own")
    config = model.config
    parts = (
        getattr(config, name, None) for name in ("vision_config", "encoder", "backbone_config")
    )
    vision: Any = next(
        (part for part in (*parts, config) if getattr(part, "image_size", None) is not None), None
    )
    if vision is None:
        raise ValueError("adapt: a check of images must be of a model that has an image_size")
    size = vision.image_size
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    taken = inspect.signature(model.forward).parameters
    prompts = [name for name in _PROMPTS if name in taken]
    if prompts:
        height //= 2
    shape = (1, vision.num_channels, height, width)
    images = {name: torch.randn(shape, generator=generator) for name in ("pixel_values", *prompts)}
    return images, f"{height} x {width} pixels"


def patch_inputs(
    model: Any, length: int | None, generator: torch.Generator
) -> tuple[dict[str, Tensor], str]:
    """Patches in rows and columns, counted from 1, and how many there are in words.

    Args:
        model: Pix2Struct.
        length: in patches; None: 2048.
        generator: of the random numbers.
    """
    count = length or _PATCHES
    vision = getattr(model.config, "vision_config", model.config)
    columns = max(1, round(count**0.5))
    place = torch.arange(count)
    places = torch.stack([place // columns, place % columns], -1) + 1
    patches = torch.randn(1, count, vision.patch_embed_hidden_size, generator=generator)
    inputs = {"flattened_patches": torch.cat([places[None].to(patches), patches], -1)}
    return inputs, f"{count} patches"
