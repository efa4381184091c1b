"""timm's MViTv2 (Li et al. 2022): keys and values, and queries of some layers, are pooled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from ..multiscale import PooledAttention

__all__ = ["Attention"]


class Attention(PooledAttention):
    """For `MultiScaleAttention`.

    Of a smaller image than its tables are for, the original does not resize them, and nor does
    this; of a larger one it fails.
    """

    signatures = {"forward": ("self", "x", "feat_size")}
    has_cls_token: bool
    rel_pos_h: nn.Parameter
    rel_pos_w: nn.Parameter

    @classmethod
    def applies(cls, module: Any) -> bool:
        return module.rel_pos_type == "spatial"

    def forward(self, x: Tensor, feat_size: Sequence[int]) -> tuple[Tensor, Sequence[int]]:
        return self.attended(x, feat_size, prefix=int(self.has_cls_token))

    def tables(self) -> list[Tensor]:
        return [self.rel_pos_h, self.rel_pos_w]

    def resized(self, rows: Tensor, count: int) -> Tensor:
        if len(rows) < count:
            raise IndexError(
                f"MultiScaleAttention: grids must have at most {(len(rows) + 1) // 2} places along "
                f"this axis, got {(count + 1) // 2}"
            )
        return rows
