"""UDOP's decoder (Tang et al. 2023), which is T5's; the encoder's offsets are those of boxes."""

from __future__ import annotations

from typing import Any

from ..not_adapted import NOT_ADAPTED
from . import t5

__all__ = ["Attention"]


class Attention(t5.Attention):
    """For `UdopAttention` of the decoder."""

    @classmethod
    def unsupported(cls, module: Any) -> str | None:
        biases = NOT_ADAPTED["transformers.models.udop.modeling_udop"]
        return None if module.is_decoder else biases["RelativePositionBias1D"]
