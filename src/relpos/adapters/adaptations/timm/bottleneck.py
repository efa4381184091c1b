"""timm's bottleneck attention (Srinivas et al. 2021, "BoTNet"): keys of two axes of a map."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ....terms import GridTerms, OffsetTable, Terms
from ...adapted import Adapted
from ...attend import attend

__all__ = ["Attention", "PositionTables"]


class PositionTables(Adapted):
    """For `PosEmbedRel`: `(r, d)` of rows and of columns, key minus query, in place of logits.

    The attention calls it, since what has weights come and go does so when a module is called.
    """

    signatures = {"forward": ("self", "q")}

    @classmethod
    def unsupported(cls, module: Any) -> str | None:
        own = (type(module).__module__, type(module).__qualname__)
        known = own == ("timm.layers.bottleneck_attn", "PosEmbedRel")
        return None if known else "it must be a PosEmbedRel"

    height_rel: nn.Parameter
    width_rel: nn.Parameter

    def forward(self, q: Tensor) -> tuple[Tensor, Tensor]:
        return self.height_rel.to(q.dtype), self.width_rel.to(q.dtype)


class Attention(Adapted):
    """For `BottleneckAttn`; with a map of another size than its tables' it fails as before."""

    scheme = "keys of two axes"
    signatures = {"forward": ("self", "x")}
    weights_dropout = ""
    parts = {"pos_embed": PositionTables}
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
        # The op scales what tables add.
        by_op = 1.0 if self.scale_pos_embed else self.scale
        axes = tuple(
            Terms(keys=OffsetTable(rows[None] / by_op, 1 - size))
            for rows, size in zip(self.pos_embed(q), shape, strict=True)
        )
        output, _ = attend(q, k, v, GridTerms(shape, axes), scale=self.scale)
        return self.pool(output.flatten(2).mT.unflatten(2, shape).contiguous())
