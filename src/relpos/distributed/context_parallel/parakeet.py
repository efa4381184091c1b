"""An adapted Parakeet encoder over a cut sequence: each rank has some frames of the audio.

The encoder is called as before, with all features on every rank, and gives all frames on every
rank. In between each rank has its own: attention is `relpos.distributed.attention`, convolutions
look at the frames of the ranks beside, and everything else acts on frames one by one. What is cut
is memory and work; weights are cut by `fully_shard`.

Only the layout `"contiguous"` has neighbours on the ranks beside, and no mask is causal here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..layout import Span, shard, spans_of_ranks, unshard
from ..ranks.group import Ranks
from .neighbours import with_neighbours

__all__ = ["check_parakeet_layout", "cut_encoder", "is_parakeet", "join_encoder"]


def is_parakeet(module: nn.Module) -> bool:
    """Whether a module is an adapted encoder of this kind."""
    # By name: the class needs transformers, without which there is no such module.
    return any(
        base.__module__ == "relpos.adapters.adaptations.parakeet" and base.__name__ == "Encoder"
        for base in type(module).__mro__
    )


def check_parakeet_layout(layout: str) -> None:
    """Raise a ValueError unless it is `"contiguous"`."""
    if layout != "contiguous":
        raise ValueError(
            "ContextParallel: layout must be 'contiguous' for Parakeet, whose convolutions look at "
            f"the frames beside, got {layout!r}"
        )


def cut_encoder(encoder: Any, ranks: Ranks) -> None:
    """Change an encoder in place.

    Args:
        encoder: an adapted `ParakeetEncoder`.
        ranks: of the group.
    """
    for part in encoder.modules():
        if _is_convolution(part):
            part.forward = partial(_convolve, part, ranks)
    encoder.forward = partial(_encode, encoder, ranks)


def join_encoder(encoder: nn.Module) -> None:
    """Undo `cut_encoder`."""
    for part in encoder.modules():
        if _is_convolution(part):
            vars(part).pop("forward", None)
    vars(encoder).pop("forward", None)


def _encode(
    encoder: Any,
    ranks: Ranks,
    input_features: Tensor,
    attention_mask: Tensor | None = None,
    output_attention_mask: bool = True,
    return_dict: bool | None = None,
    **options: Any,
) -> Any:
    """The encoder's forward, of which each rank does its frames."""
    if return_dict is None:
        return_dict = bool(encoder.config.return_dict)
    factor = encoder.subsampling.stride**encoder.subsampling.num_layers
    # As many frames as the convolutions make of all features.
    frames = -(-input_features.shape[1] // factor)
    cut = spans_of_ranks(frames, ranks.size, "contiguous")
    _check_frames(encoder, cut)
    (own,) = cut[ranks.rank] or ((0, 0),)
    encoder.encode_positions.whole_length = lambda _: frames
    encoder.subsampling.forward = partial(_subsample, encoder.subsampling, own, factor)
    encoder._get_output_attention_mask = partial(_own_tokens, encoder, ranks, frames)
    try:
        result = type(encoder).forward(
            encoder, input_features, attention_mask, output_attention_mask, return_dict=True,
            **options,
        )  # fmt: skip
    finally:
        encoder.encode_positions.whole_length = None
        for part, name in (
            (encoder.subsampling, "forward"), (encoder, "_get_output_attention_mask")
        ):  # fmt: skip
            vars(part).pop(name, None)
    result.last_hidden_state = unshard(result.last_hidden_state, ranks.given, "contiguous")
    if result.attention_mask is not None:
        result.attention_mask = unshard(result.attention_mask, ranks.given, "contiguous")
    if result.hidden_states is not None:
        result.hidden_states = tuple(
            unshard(x, ranks.given, "contiguous") for x in result.hidden_states
        )
    return result if return_dict else result.to_tuple()


def _check_frames(encoder: Any, cut: Sequence[Sequence[Span]]) -> None:
    """Raise, on every rank, unless each has the frames that convolutions on the next ones read."""
    context = max((part.padding for part in encoder.modules() if _is_convolution(part)), default=0)
    fewest = min(sum(end - first for first, end in own) for own in cut)
    if fewest < context:
        raise ValueError(
            f"ContextParallel: input_features must give every rank {context} frames at least, as "
            "many as Parakeet's convolutions look to either side, "
            f"got {fewest} on one of {len(cut)}"
        )


def _is_convolution(part: Any) -> bool:
    return type(part).__name__ == "ParakeetEncoderConvolutionModule"


def _subsample(
    subsampling: Any, own: Span, factor: int, features: Tensor, attention_mask: Tensor | None = None
) -> Tensor:
    """The frames of this rank, from its features and those of one frame before and after."""
    first, end = own
    begin, stop = max(first - 1, 0) * factor, (end + 1) * factor
    mask = None
    if attention_mask is not None:
        # It counts tokens, wherever they are.
        counts = attention_mask.sum(-1, keepdim=True)
        positions = torch.arange(features.shape[1], device=features.device)
        mask = (positions < counts)[:, begin:stop]
    found = type(subsampling).forward(subsampling, features[:, begin:stop], mask)
    skipped = first - begin // factor
    return found[:, skipped : skipped + end - first]


def _own_tokens(
    encoder: Any, ranks: Ranks, frames: int, attention_mask: Tensor, target_length: int
) -> Tensor:
    """Which of this rank's frames are of the audio."""
    whole = type(encoder)._get_output_attention_mask(encoder, attention_mask, target_length=frames)
    return shard(whole, ranks.given, "contiguous")


def _convolve(
    module: Any, ranks: Ranks, hidden_states: Tensor, attention_mask: Tensor | None = None
) -> Tensor:
    """The module's forward, which sees frames of the ranks beside."""
    if module.training and isinstance(module.norm, nn.modules.batchnorm._BatchNorm):
        raise ValueError(
            "ContextParallel: Parakeet must be in evaluation mode: its batch norm would take "
            "the mean over this rank's frames, got one in training"
        )
    count = hidden_states.shape[1]
    hidden_states, before = with_neighbours(hidden_states, ranks, module.padding)
    if attention_mask is not None:
        attention_mask, _ = with_neighbours(attention_mask, ranks, module.padding, dim=3)
    found = type(module).forward(module, hidden_states, attention_mask)
    return found[:, before : before + count]
