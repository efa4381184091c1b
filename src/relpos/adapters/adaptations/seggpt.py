"""SegGPT (Wang et al. 2023): an example above the image, and attention over both."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .image_keys import ImageAttention

__all__ = ["Attention"]


class Attention(ImageAttention):
    """For `SegGptAttention`."""

    signatures = {"forward": ("self", "hidden_states", "output_attentions")}
    num_attention_heads: int
    use_relative_position_embeddings: bool

    @classmethod
    def applies(cls, module: Any) -> bool:
        return module.use_relative_position_embeddings

    def forward(
        self, hidden_states: Tensor, output_attentions: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        return self.image_attention(
            hidden_states, heads=self.num_attention_heads, weights=output_attentions
        )
