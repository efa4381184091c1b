"""Random sounds, and features of sounds, for a model of audio."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["feature_inputs", "wave_inputs"]

# Half a minute, where nothing else is asked for.
_FRAMES, _SAMPLES = 3000, 480_000
# Crops of a long recording that CLAP looks at beside the whole of it, and the whole.
_CROPS = 4


def wave_inputs(
    model: Any, length: int | None, generator: torch.Generator
) -> tuple[dict[str, Tensor], str]:
    """Samples of audio, and how many there are in words.

    Args:
        model: of transformers.
        length: in samples; None: 30 seconds.
        generator: of the random numbers.
    """
    count = length or _SAMPLES
    return {"input_values": torch.randn(1, count, generator=generator)}, f"{count} samples of audio"


def feature_inputs(
    model: Any, length: int | None, generator: torch.Generator, *, name: str = "input_features"
) -> tuple[dict[str, Tensor], str]:
    """Frames of features, and how many there are in words.

    Args:
        model: of transformers.
        length: in frames; None: 30 seconds of 100 each second, or all that there is room for.
        generator: of the random numbers.
        name: of the input: `input_features`, `audio_mel` or `hidden_states`.

    Raises:
        ValueError: if the model has no room for so many, or does not say how wide they are.
    """
    if getattr(model.config, "spec_size", None) is not None:
        return _spectrogram(model, length, generator)
    count = length or _FRAMES
    inputs = {name: torch.randn(1, count, _feature_width(model), generator=generator)}
    if name == "audio_mel":  # Gemma 3n's, beside which it wants to hear what is padding.
        inputs["audio_mel_mask"] = torch.zeros(1, count, dtype=torch.bool)
    return inputs, f"{count} frames of features"


def _spectrogram(
    model: Any, length: int | None, generator: torch.Generator
) -> tuple[dict[str, Tensor], str]:
    """CLAP's: an image that is folded into a square."""
    config = model.config
    most = config.spec_size * (config.spec_size // config.num_mel_bins)
    if length is not None and length > most:
        raise ValueError(
            f"--length: must be at most {most} frames of features for {type(model).__name__}, "
            f"got {length}"
        )
    count = length or most
    channels = _CROPS if config.enable_fusion else 1
    features = torch.randn(1, channels, count, config.num_mel_bins, generator=generator)
    inputs = {"input_features": features}
    if config.enable_fusion:
        inputs["is_longer"] = torch.zeros(1, 1, dtype=torch.bool)
    return inputs, f"{count} frames of features"


def _feature_width(model: Any) -> int:
    """The width of a frame of features: the configuration, its encoder's or a weight says it."""
    config = model.config
    if config.model_type.startswith("gemma4"):
        # Its convolutions have strides of 2, twice.
        last = config.subsampling_conv_channels[-1]
        return 4 * model.subsample_conv_projection.input_proj_linear.in_features // last
    if config.model_type.startswith("granite_speech5"):
        # Bins and their differences, of two frames at a time.
        return 4 * config.encoder_config.num_mel_bins
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
