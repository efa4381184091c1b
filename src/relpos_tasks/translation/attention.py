"""Where the heads of an encoder look while they read one sentence."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor, nn

from relpos.plots import decoder_weights

from ..models.encoder_decoder import EncoderDecoder

__all__ = ["encoder_weights"]


def encoder_weights(model: EncoderDecoder, source: Sequence[int]) -> Float[ndarray, "layer h i i"]:
    """The self-attention weights of every layer and head of the encoder.

    Args:
        model: dropout is left out.
        source: tokens of one sentence, with its end.
    """
    device = model.source_embedding.weight.device
    return decoder_weights(_Reading(model), torch.tensor([*source], device=device)).cpu().numpy()


class _Reading(nn.Module):
    """The encoder alone, as a model of one input."""

    def __init__(self, model: EncoderDecoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor) -> Tensor:
        return self.model.encode(source)
