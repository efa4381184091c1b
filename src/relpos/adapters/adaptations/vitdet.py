"""ViTDet (Li et al. 2022), the backbone of ViTMatte too: windows, and some layers without.

Images may have any size, so that tables are often interpolated.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .image_keys import ImageAttention

__all__ = ["Attention"]


class Attention(ImageAttention):
    """For `VitDetAttention`."""

    signatures = {"forward": ("self", "hidden_state", "output_attentions")}
    num_heads: int
    use_relative_position_embeddings: bool

    @classmethod
    def applies(cls, module: Any) -> bool:
        return module.use_relative_position_embeddings

    def forward(
        self, hidden_state: Tensor, output_attentions: bool = False
    ) -> tuple[Tensor] | tuple[Tensor, Tensor | None]:
        output, weights = self.image_attention(
            hidden_state, heads=self.num_heads, weights=output_attentions
        )
        return (output, weights) if output_attentions else (output,)
