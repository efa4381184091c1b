"""What Parakeet's and Nemotron's encoders do to a long input piece by piece, without gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..adapted import Adapted

__all__ = ["FeedForward", "subsample_in_pieces"]

# Frames of the encoder of which there is one piece at a time.
_PIECE = 1024


def subsample_in_pieces(
    subsample: Callable[[Tensor, Tensor | None], Tensor],
    features: Tensor,
    attention_mask: Tensor | None,
    *,
    factor: int,
    frames_before: int,
) -> Tensor:
    """What convolutions over time make of features, which they see one piece of at a time.

    At both ends of a piece the convolutions see zeros where the features go on: what they make of
    these is dropped, and computed with another piece.

    Args:
        subsample: from features and their mask to frames, one for each `factor` of them and, it may
            be, one more.
        features: `(b, l, e)`.
        attention_mask: `(b, l)`, or None. The originals count tokens, wherever they are.
        factor: features for each frame.
        frames_before: the first so many frames see features before their own.

    Returns:
        `(b, i, e)`, as of the whole.
    """
    length = features.shape[1]
    if torch.is_grad_enabled() or length <= _PIECE * factor:
        return subsample(features, attention_mask)
    counts = None if attention_mask is None else attention_mask.sum(-1, keepdim=True)
    positions = torch.arange(length, device=features.device)
    pieces = []
    for start in range(0, length, _PIECE * factor):
        begin, end = max(start - frames_before * factor, 0), start + _PIECE * factor
        mask = None if counts is None else positions[begin:end] < counts
        piece = subsample(features[:, begin:end], mask)[:, (start - begin) // factor :]
        pieces.append(piece[:, :_PIECE] if end < length else piece)
    return torch.cat(pieces, 1)


class FeedForward(Adapted):
    """For `ParakeetEncoderFeedForward` and Nemotron's: one piece of its wide middle at a time."""

    signatures = {"forward": ("self", "hidden_states")}

    def forward(self, hidden_states: Tensor) -> Tensor:
        # In training too: checkpointing runs the same twice, and dropout must be drawn the same.
        if self.training or torch.is_grad_enabled() or hidden_states.shape[1] <= _PIECE:
            return super().forward(hidden_states)
        forward: Any = super().forward
        return torch.cat([forward(piece) for piece in hidden_states.split(_PIECE, 1)], 1)
