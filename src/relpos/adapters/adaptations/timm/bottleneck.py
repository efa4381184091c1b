"""timm's bottleneck attention (Srinivas et al. 2021, "BoTNet"): keys of two axes over a whole map."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ....terms import GridTerms, OffsetTable, Terms
from ...adapted import Adapted
from ...attend import attend

__all__ = ["Attention"]


class Attention(Adapted):
    """For `BottleneckAttn`; with a map of another size than its tables' it runs as before: fails."""

    scheme = "keys of two axes"
    signatures = {"forward": ("self", "x")}
    num_heads: int
    dim_out_qk: int
    dim_out_v: int
    scale: float
    scale_pos_embed: bool
    qkv: nn.Module
    pos_embed: Any
    pool: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        shape = (x.shape[2], x.shape[3])
        if shape != (self.pos_embed.height, self.pos_embed.width):
            return self.original_forward(x)
        widths = (self.dim_out_qk, self.dim_out_qk, self.dim_out_v)
        q, k, v = (
            part.flatten(2).unflatten(1, (self.num_heads, -1)).mT
            for part in self.qkv(x).split(widths, 1)
        )
        axes = tuple(
            Terms(keys=OffsetTable(self._rows(rows, q)[None], 1 - size))
            for rows, size in zip(
                (self.pos_embed.height_rel, self.pos_embed.width_rel), shape, strict=True
            )
        )
        output, _ = attend(q, k, v, GridTerms(shape, axes), scale=self.scale)
        return self.pool(output.flatten(2).mT.unflatten(2, shape))

    def _rows(self, rows: Tensor, q: Tensor) -> Tensor:
        """A table of key minus query, which the op scales."""
        return (rows if self.scale_pos_embed else rows / self.scale).to(q.dtype)
