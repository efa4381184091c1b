"""timm's BEiT (Bao et al. 2022): biases of an image with a class token."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ...heads import split_qkv
from ..image_bias import ImageBias, attend_to_image
from ..window_attention import bias_of_table
from .attention import TimmAttention, dropout_of
from .projections import project_biased

__all__ = ["Attention"]


class Attention(TimmAttention):
    """For `Attention` of `beit`; given another bias for all layers, it runs as before."""

    scheme = "joint bias of two axes"
    signatures = {"forward": ("self", "x", "shared_rel_pos_bias")}
    window_size: tuple[int, int]
    scale: float
    relative_position_bias_table: nn.Parameter

    @classmethod
    def applies(cls, module: Any) -> bool:
        return module.relative_position_bias_table is not None

    def forward(self, x: Tensor, shared_rel_pos_bias: Tensor | None = None) -> Tensor:
        if shared_rel_pos_bias is not None:
            return self.original_forward(x, shared_rel_pos_bias)
        return self.attended(x)

    def attended(self, x: Tensor) -> Tensor:
        """The module's output, with its own bias."""
        q, k, v = split_qkv(project_biased(self, x), heads=self.num_heads)
        table = self.relative_position_bias_table
        output, _ = attend_to_image(
            q, k, v, ImageBias(bias_of_table(table[:-3], self.window_size), table[-3:]),
            scale=self.scale, dropout=dropout_of(self), weights=False,
        )  # fmt: skip
        return self.projected(output.flatten(2))
