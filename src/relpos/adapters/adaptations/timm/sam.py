"""timm's SAM (Kirillov et al. 2023): its attention within windows and over the whole image."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..image_keys import ImageAttention
from .attention import dropout_of

__all__ = ["Attention"]


class Attention(ImageAttention):
    """For `Attention` of `vision_transformer_sam`."""

    signatures = {"forward": ("self", "x")}
    weights_dropout = "attn_drop"
    num_heads: int
    use_rel_pos: bool
    q_norm: nn.Module
    k_norm: nn.Module
    attn_drop: nn.Dropout
    proj_drop: nn.Module

    @classmethod
    def applies(cls, module: Any) -> bool:
        return module.use_rel_pos

    def forward(self, x: Tensor) -> Tensor:
        output, _ = self.image_attention(x, heads=self.num_heads, dropout=dropout_of(self))
        return self.proj_drop(output)

    def normalized(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.q_norm(q), self.k_norm(k)
