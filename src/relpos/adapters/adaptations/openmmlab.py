"""OpenMMLab's BEiT (Bao et al. 2022) and MViTv2 (Li et al. 2022), of images and of videos.

MMDetection, MMSegmentation, MMPretrain and MMAction2 have Swin as timm and MONAI do, and SAM as
its authors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from .multiscale import PooledAttention
from .timm import beit

__all__ = ["BeitAttention", "BeitSegmentationAttention", "ImageAttention", "VideoAttention"]


class BeitAttention(beit.Attention):
    """For `BEiTAttention` of MMPretrain; given another bias for all layers, it runs as before."""

    signatures = {"forward": ("self", "x", "rel_pos_bias")}

    def forward(self, x: Tensor, rel_pos_bias: Tensor | None = None) -> Tensor:
        if rel_pos_bias is not None:
            return self.original_forward(x, rel_pos_bias)
        return self.attended(x)


class BeitSegmentationAttention(beit.Attention):
    """For `BEiTAttention` of MMSegmentation."""

    signatures = {"forward": ("self", "x")}

    def forward(self, x: Tensor) -> Tensor:
        return self.attended(x)


class ImageAttention(PooledAttention):
    """For `MultiScaleAttention` of MMPretrain."""

    signatures = {"forward": ("self", "x", "in_size")}
    rel_pos_h: nn.Parameter
    rel_pos_w: nn.Parameter

    @classmethod
    def applies(cls, module: Any) -> bool:
        return module.rel_pos_spatial

    def forward(self, x: Tensor, in_size: Sequence[int]) -> tuple[Tensor, Sequence[int]]:
        return self.attended(x, in_size, prefix=0)

    def tables(self) -> list[Tensor]:
        return [self.rel_pos_h, self.rel_pos_w]


class VideoAttention(PooledAttention):
    """For `MultiScaleAttention` of MMAction2."""

    signatures = {"forward": ("self", "x", "in_size")}
    with_cls_token: bool
    rel_pos_t: nn.Parameter
    rel_pos_h: nn.Parameter
    rel_pos_w: nn.Parameter

    @classmethod
    def applies(cls, module: Any) -> bool:
        return module.rel_pos_embed

    def forward(self, x: Tensor, in_size: Sequence[int]) -> tuple[Tensor, Sequence[int]]:
        prefix = int(self.with_cls_token)
        return self.attended(x, in_size, prefix=prefix, kept=prefix)

    def tables(self) -> list[Tensor]:
        return [self.rel_pos_t, self.rel_pos_h, self.rel_pos_w]
