"""Random inputs for a model of transformers, of a given length."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["make_inputs"]

# By the name of a model's input: what its length counts, and a length that shows something.
_LENGTHS = {
    "input_ids": ("tokens", 2048),
    "input_features": ("frames of features", 3000),
    "input_values": ("samples of audio", 480_000),
}


def make_inputs(model: nn.Module, length: int | None) -> tuple[dict[str, Tensor], str]:
    """Inputs for one sequence or image, and its length in words.

    Args:
        model: of transformers.
        length: in what the model reads: tokens, frames of features, samples of audio; None: 2048
            tokens or 30 seconds, or all that the model has absolute positions for. Images have the
            size that the model is for.

    Raises:
        ValueError: if the model reads something else, its images are given a length, or its tokens
            one beyond its positions.
    """
    found: Any = model
    name, config = found.main_input_name, found.config
    generator = torch.Generator().manual_seed(0)
    if name == "pixel_values":
        image, words = _image(config, length, generator)
        image |= _decoder_inputs(model, 128, generator)
        _check_needs(model, image)
        return image, words
    if name not in _LENGTHS:
        raise ValueError(
            f"adapt: a check must be of a model that reads {', '.join(_LENGTHS)} or pixel_values, "
            f"got {type(model).__name__}, which reads {name}"
        )
    unit, usual = _LENGTHS[name]
    most = _positions(model) if name == "input_ids" else None
    if length is not None and most is not None and length > most:
        raise ValueError(
            f"--length: must be at most {most} for {type(model).__name__}, which has no position "
            f"for more tokens, got {length}"
        )
    count = length or min(usual, most or usual)
    if name == "input_ids":
        x = _tokens(config, count, generator)
    else:
        shape = (1, count) if name == "input_values" else (1, count, _feature_width(config))
        x = torch.randn(shape, generator=generator)
    decoder = _decoder_inputs(model, min(count, 128), generator)
    inputs = {name: x, **decoder}
    _check_needs(model, inputs)
    return inputs, f"{count} {unit}"


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


def _tokens(config: Any, count: int, generator: torch.Generator) -> Tensor:
    try:
        text = config.get_text_config()
    except ValueError as error:  # of several that there are
        raise ValueError(f"adapt: a check must be of a model of one text, got {error}") from error
    if not hasattr(text, "vocab_size"):
        raise ValueError("adapt: a check of token ids must be of a model that has a vocab_size")
    return torch.randint(text.vocab_size, (1, count), generator=generator)


def _decoder_inputs(model: Any, count: int, generator: torch.Generator) -> dict[str, Tensor]:
    """What the decoder reads, where there is one: tokens, or frames of a spectrogram."""
    taken = inspect.signature(model.forward).parameters
    if not getattr(model.config, "is_encoder_decoder", False):
        return {}
    if "decoder_input_ids" in taken:
        return {"decoder_input_ids": _tokens(model.config, count, generator)}
    if "decoder_input_values" in taken:
        shape = (1, count, model.config.num_mel_bins)
        return {"decoder_input_values": torch.randn(shape, generator=generator)}
    return {}


def _positions(model: nn.Module) -> int | None:
    """How many tokens a model with learned absolute positions takes; None without them."""
    tables = [
        module.num_embeddings - (module.padding_idx + 1 if module.padding_idx is not None else 0)
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) and name.rpartition(".")[2] == "position_embeddings"
    ]
    return min(tables, default=None)


def _feature_width(config: Any) -> int:
    """The width of a frame of features; the configuration or that of its encoder names it."""
    for holder in (config, getattr(config, "encoder_config", None)):
        for name in (
            "feature_projection_input_dim",
            "num_mel_bins",
            "input_dim",
            "input_feat_size",
        ):
            if isinstance(width := getattr(holder, name, None), int):
                return width
    raise ValueError("adapt: a check must be of a model whose configuration has num_mel_bins")


def _image(
    config: Any, length: int | None, generator: torch.Generator
) -> tuple[dict[str, Tensor], str]:
    if length is not None:
        raise ValueError("--length: must be left out for a model of images, whose size is its own")
    parts = (
        getattr(config, name, None) for name in ("vision_config", "encoder", "backbone_config")
    )
    vision = next(
        (part for part in (*parts, config) if getattr(part, "image_size", None) is not None), None
    )
    if vision is None:
        raise ValueError("adapt: a check of images must be of a model that has an image_size")
    size = vision.image_size
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    pixels = torch.randn(1, vision.num_channels, height, width, generator=generator)
    return {"pixel_values": pixels}, f"{height} x {width} pixels"
