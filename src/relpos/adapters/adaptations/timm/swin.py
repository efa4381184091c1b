"""timm's Swin (Liu et al. 2021): attention within windows of an image."""

from __future__ import annotations

from torch import Tensor, nn

from ...adapted import Adapted
from ...heads import split_qkv
from ..window_attention import attend_in_windows, bias_of_table

__all__ = ["WindowAttention"]


class WindowAttention(Adapted):
    """For `WindowAttention` of `swin_transformer`."""

    scheme = "joint bias of two axes, in windows"
    signatures = {"forward": ("self", "x", "mask")}
    weights_dropout = "attn_drop"
    num_heads: int
    scale: float
    window_size: tuple[int, int]
    relative_position_bias_table: nn.Parameter
    qkv: nn.Module
    attn_drop: nn.Dropout
    proj: nn.Module
    proj_drop: nn.Module

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = split_qkv(self.qkv(x), heads=self.num_heads)
        output, _ = attend_in_windows(
            q, k, v, bias_of_table(self.relative_position_bias_table, self.window_size), mask,
            scale=self.scale, dropout=self.attn_drop.p if self.training else 0.0, weights=False,
        )  # fmt: skip
        return self.proj_drop(self.proj(output.flatten(2)))
