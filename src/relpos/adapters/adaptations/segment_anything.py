"""SAM (Kirillov et al. 2023) as its authors published it."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .image_keys import ImageAttention

__all__ = ["Attention"]


class Attention(ImageAttention):
    """For `Attention` of `image_encoder`."""

    signatures = {"forward": ("self", "x")}
    weights_dropout = ""
    num_heads: int
    use_rel_pos: bool

    @classmethod
    def applies(cls, module: Any) -> bool:
        return module.use_rel_pos

    def forward(self, x: Tensor) -> Tensor:
        return self.image_attention(x, heads=self.num_heads)[0]
