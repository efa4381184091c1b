"""SAM (Kirillov et al. 2023) and what has a copy of its encoder of images.

All layers but a few attend within windows of 14 x 14 tokens, the others over the whole image.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..weights_wanted import weights_wanted
from .image_keys import ImageAttention

__all__ = ["Attention", "SdpaAttention"]


class Attention(ImageAttention):
    """For `SamVisionAttention`."""

    signatures = {"forward": ("self", "hidden_states", "output_attentions")}
    num_attention_heads: int
    use_rel_pos: bool
    dropout: float

    @classmethod
    def applies(cls, module: Any) -> bool:
        return module.use_rel_pos

    def forward(
        self, hidden_states: Tensor, output_attentions: bool | None = None
    ) -> tuple[Tensor, Tensor | None]:
        output, weights = self.image_attention(
            hidden_states, heads=self.num_attention_heads, dropout=self._dropout_now(),
            weights=weights_wanted({"output_attentions": output_attentions}),
        )  # fmt: skip
        # Batch and heads are one axis in the original's.
        return output, None if weights is None else weights.flatten(0, 1)

    def _dropout_now(self) -> float:
        return self.dropout if self.training else 0.0


class SdpaAttention(Attention):
    """For `SamVisionSdpaAttention`, which never drops weights, and here gives them when asked."""

    def _dropout_now(self) -> float:
        return 0.0
