"""timm's Swin (Liu et al. 2021): attention within windows of an image."""

from __future__ import annotations

from torch import Tensor, nn

from ...heads import split_qkv
from ..window_attention import attend_in_windows, bias_of_table
from .attention import TimmAttention, dropout_of

__all__ = ["WindowAttention"]


class WindowAttention(TimmAttention):
    """For `WindowAttention` of `swin_transformer`."""

    scheme = "joint bias of two axes, in windows"
    signatures = {"forward": ("self", "x", "mask")}
    window_size: tuple[int, int]
    scale: float
    relative_position_bias_table: nn.Parameter

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = split_qkv(self.qkv(x), heads=self.num_heads)
        output, _ = attend_in_windows(
            q, k, v, bias_of_table(self.relative_position_bias_table, self.window_size), mask,
            scale=self.scale, dropout=dropout_of(self), weights=False,
        )  # fmt: skip
        return self.projected(output.flatten(2))
