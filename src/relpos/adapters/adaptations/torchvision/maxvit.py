"""torchvision's MaxViT (Tu et al. 2022): windows, and grids of tokens that lie far apart."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from ...adapted import Adapted
from ...heads import project_heads
from ..window_attention import attend_in_windows, bias_of_table

__all__ = ["Attention"]


class Attention(Adapted):
    """For `RelativePositionalMultiHeadAttention`."""

    scheme = "joint bias of two axes, in windows"
    signatures = {"forward": ("self", "x")}
    weights_dropout = ""
    size: int
    head_dim: int
    scale_factor: float
    relative_position_bias_table: nn.Parameter
    to_qkv: nn.Module
    merge: nn.Module

    def forward(self, x: Float[Tensor, "b w i e"]) -> Float[Tensor, "b w i e"]:
        pieces = x.flatten(0, 1)
        (qkv,) = project_heads(pieces, self.to_qkv, width=self.head_dim)
        q, k, v = qkv.chunk(3, dim=1)
        bias = bias_of_table(self.relative_position_bias_table, (self.size, self.size))
        output, _ = attend_in_windows(
            q, k, v, bias, None, scale=self.scale_factor, dropout=0.0, weights=False
        )
        return self.merge(output.flatten(2)).unflatten(0, x.shape[:2])
