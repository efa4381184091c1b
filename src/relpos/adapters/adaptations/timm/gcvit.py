"""timm's GC ViT (Hatamizadeh et al. 2023): windows, some with queries of the image."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ...adapted import Adapted
from ...heads import split_heads, split_qkv
from ..image_bias import attend_to_image
from .biases import OffsetBias, unknown_bias

__all__ = ["WindowAttention"]


class WindowAttention(Adapted):
    """For `WindowAttentionGlobal`."""

    scheme = "joint bias of two axes, in windows"
    signatures = {"forward": ("self", "x", "q_global")}
    weights_dropout = "attn_drop"
    parts = {"rel_pos": OffsetBias}
    num_heads: int
    head_dim: int
    scale: float
    use_global: bool
    qkv: nn.Module
    rel_pos: nn.Module
    attn_drop: nn.Dropout
    proj: nn.Module
    proj_drop: nn.Module

    @classmethod
    def unsupported(cls, module: Any) -> str | None:
        return unknown_bias(module.rel_pos)

    def forward(self, x: Tensor, q_global: Tensor | None = None) -> Tensor:
        if self.use_global and q_global is not None:
            # The windows of an image come one after the other, and see its queries.
            q = split_heads(q_global.flatten(1, -2), width=self.head_dim)
            q = q.repeat_interleave(len(x) // len(q), 0)
            k, v = (split_heads(part, width=self.head_dim) for part in self.qkv(x).chunk(2, dim=-1))
        else:
            q, k, v = split_qkv(self.qkv(x), heads=self.num_heads)
        output, _ = attend_to_image(
            q, k, v, self.rel_pos(), scale=self.scale,
            dropout=self.attn_drop.p if self.training else 0.0, weights=False,
        )  # fmt: skip
        return self.proj_drop(self.proj(output.flatten(2)))
