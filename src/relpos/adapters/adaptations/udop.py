"""UDOP's decoder (Tang et al. 2023), which is T5's; the encoder's offsets are those of boxes."""

from __future__ import annotations

from typing import Any

from ..not_adapted import BOXES
from . import t5

__all__ = ["Attention"]


class Attention(t5.Attention):
    """For `UdopAttention` of the decoder."""

    @classmethod
    def unsupported(cls, module: Any) -> str | None:
        return super().unsupported(module) if module.is_decoder else BOXES
