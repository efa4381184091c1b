"""Two texts, sounds or images of random numbers, in every form that models of a kind ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from .small_models import IMAGE, VOCABULARY

__all__ = ["PADDING", "candidates", "image_features", "texts"]

#: Which part of the second text or sound is padding.
PADDING = ("none", "left", "right", "between")

_LENGTH, _SAMPLES, _FRAMES, _DECODED = 20, 2000, 64, 9


def texts(padding: str) -> dict[str, Tensor]:
    """`input_ids`, and an `attention_mask` of 1 for tokens and 0 for padding.

    Args:
        padding: one of `PADDING`.
    """
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, VOCABULARY, (2, _LENGTH), generator=generator)
    return {"input_ids": ids, "attention_mask": _mask(_LENGTH, padding)}


def candidates(kind: str, model: PreTrainedModel, padding: str) -> Iterator[dict[str, Any]]:
    """What a model of a kind may be called with: the first on which it runs is to be taken.

    Args:
        kind: a key of `measure.implementation_sweep.KINDS`.
        model: of that kind.
        padding: one of `PADDING`.
    """
    given = texts(padding)
    beside = {"decoder_input_ids": given["input_ids"][:, :_DECODED]}
    if kind == "images":
        yield {"pixel_values": _random(2, 3, IMAGE, IMAGE)}
    elif kind in ("speech", "speech to text"):
        for other in ({}, beside, {"input_ids": given["input_ids"]}):
            for sound in _sounds(model.config, padding):
                yield sound | other
    else:
        if kind == "images and texts":
            yield given | {"pixel_values": _random(2, 3, IMAGE, IMAGE)}
        yield given | beside if model.config.is_encoder_decoder else given
        if kind == "texts about images":
            yield beside | {"pixel_values": _random(2, 3, IMAGE, IMAGE)}


def image_features(model: PreTrainedModel) -> list[Callable[[], Any]]:
    """Calls of what a model makes of images before they join a text; none where it has no name.

    Args:
        model: for images and texts.
    """
    owner: Any = model if hasattr(model, "get_image_features") else getattr(model, "model", None)
    if not hasattr(owner, "get_image_features"):
        return []
    vision = getattr(model.config, "vision_config", None)
    pixels, sizes = _random(2, 3, IMAGE, IMAGE), torch.full((2, 2), IMAGE)
    forms: list[dict[str, Any]] = [
        {"pixel_values": pixels},
        {"pixel_values": pixels, "image_sizes": sizes},
        {"pixel_values": pixels[:, None], "image_sizes": sizes},
    ]
    if isinstance(patch := getattr(vision, "patch_size", None), int):
        side, frames = IMAGE // patch, getattr(vision, "temporal_patch_size", None) or 1
        grid = torch.tensor([[1, side, side]] * 2)
        patches = _random(2 * side**2, 3 * frames * patch**2)
        forms.append({"pixel_values": patches, "image_grid_thw": grid})
    return [lambda form=form: owner.get_image_features(**form) for form in forms]


def _sounds(config: PreTrainedConfig, padding: str) -> Iterator[dict[str, Tensor]]:
    """Samples, and frames of as many bands as the model or else others have; masked if it can."""
    samples, mask = _random(2, _SAMPLES), _mask(_SAMPLES, padding)
    yield {"input_values": samples, "attention_mask": mask}
    yield {"input_values": samples}
    parts = (config, getattr(config, "audio_config", None), getattr(config, "encoder_config", None))
    names = ("num_mel_bins", "feature_size", "input_feat_per_channel", "input_dim")
    found = [getattr(part, name, None) for part in parts for name in names]
    for bands in dict.fromkeys([x for x in found if isinstance(x, int)] + [80, 128, 160]):
        frames, mask = _random(2, _FRAMES, bands), _mask(_FRAMES, padding)
        for features in (frames, frames.mT.contiguous()):
            yield {"input_features": features, "attention_mask": mask}
            yield {"input_features": features}


def _random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _mask(length: int, padding: str) -> Tensor:
    hidden = {
        "none": slice(0), "left": slice(3 * length // 10), "right": slice(7 * length // 10, None),
        "between": slice(length // 5, 9 * length // 20),
    }  # fmt: skip
    mask = torch.ones(2, length, dtype=torch.long)
    mask[1, hidden[padding]] = 0
    return mask
