"""timm's MViTv2 (Li et al. 2022): keys and values, and queries of some layers, are pooled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from ..multiscale import PooledAttention

__all__ = ["Attention"]


class Attention(PooledAttention):
    """For `MultiScaleAttention`.

    Of an image of another size than its tables are for, the original does not resize them, and nor
    does this; where they have too few rows it fails.
    """

    signatures = {"forward": ("self", "x", "feat_size")}
    has_cls_token: bool
    rel_pos_h: nn.Parameter
    rel_pos_w: nn.Parameter

    @classmethod
    def applies(cls, module: Any) -> bool:
        return module.rel_pos_type == "spatial"

    def forward(self, x: Tensor, feat_size: Sequence[int]) -> tuple[Tensor, Sequence[int]]:
        output, shape = self.attended(x, feat_size, prefix=int(self.has_cls_token))
        return output, list(shape)

    def tables(self) -> list[Tensor]:
        return [self.rel_pos_h, self.rel_pos_w]

    def resized(self, rows: Tensor, queries: int, keys: int) -> Tensor:
        finer, coarser = max(queries, keys), min(queries, keys)
        needed = 2 * finer - (finer + coarser - 1) // coarser
        if len(rows) < needed:
            raise IndexError(
                f"MultiScaleAttention: an axis of {queries} coordinates of queries and {keys} of "
                f"keys must have {needed} rows, got {len(rows)}"
            )
        return rows
