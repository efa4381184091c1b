"""timm's MViTv2 (Li et al. 2022): keys and values, and queries of some layers, are pooled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from ...heads import split_qkv
from ..multiscale import MultiscaleAttention, pooled

__all__ = ["Attention"]


class Attention(MultiscaleAttention):
    """For `MultiScaleAttention`.

    For an image that is larger than its tables it runs as before, and fails; of a smaller one the
    original does not resize them, and nor does this.
    """

    signatures = {"forward": ("self", "x", "feat_size")}
    scale: float
    has_cls_token: bool
    residual_pooling: bool
    pool_q: nn.Module | None
    pool_k: nn.Module | None
    pool_v: nn.Module | None
    norm_q: nn.Module | None
    norm_k: nn.Module | None
    norm_v: nn.Module | None
    rel_pos_h: nn.Parameter
    rel_pos_w: nn.Parameter
    proj: nn.Module

    @classmethod
    def applies(cls, module: Any) -> bool:
        return module.rel_pos_type == "spatial"

    def forward(self, x: Tensor, feat_size: Sequence[int]) -> tuple[Tensor, Sequence[int]]:
        prefix = int(self.has_cls_token)
        q, k, v = split_qkv(self.qkv(x), heads=self.num_heads)
        q, query_shape = pooled(q, feat_size, self.pool_q, self.norm_q, prefix=prefix)
        k, shape = pooled(k, feat_size, self.pool_k, self.norm_k, prefix=prefix)
        largest = (max(sizes) for sizes in zip(query_shape, shape, strict=True))
        if any(2 * n > len(rows) + 1 for n, rows in zip(largest, self.tables(), strict=True)):
            return self.original_forward(x, feat_size)
        v, _ = pooled(v, feat_size, self.pool_v, self.norm_v, prefix=prefix)
        output = self.multiscale_attention(
            q, k, v, query_shape, shape, scale=self.scale, prefix=prefix
        )
        if self.residual_pooling:
            output = output + q
        return self.proj(output.transpose(1, 2).flatten(2)), query_shape

    def tables(self) -> list[Tensor]:
        return [self.rel_pos_h, self.rel_pos_w]

    def resized(self, rows: Tensor, count: int) -> Tensor:
        return rows
