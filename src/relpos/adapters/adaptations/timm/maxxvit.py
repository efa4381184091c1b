"""timm's MaxViT (Tu et al. 2022), CoAtNet (Dai et al. 2021) and their kin.

MaxViT attends within windows, then over grids of tokens that lie far apart; to the attention both
are pieces of the batch.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ...adapted import Adapted
from ...heads import split_qkv
from ..image_bias import attend_to_image
from .biases import OffsetBias, unknown_bias

__all__ = ["Attention2d", "AttentionCl"]


class AttentionCl(Adapted):
    """For `AttentionCl`, whose channels come last."""

    scheme = "joint bias of two axes"
    signatures = {"forward": ("self", "x", "shared_rel_pos")}
    weights_dropout = "attn_drop"
    parts = {"rel_pos": OffsetBias}
    num_heads: int
    head_first: bool
    scale: float
    qkv: nn.Module
    rel_pos: nn.Module
    attn_drop: nn.Dropout
    proj: nn.Module
    proj_drop: nn.Module

    @classmethod
    def applies(cls, module: Any) -> bool:
        return module.rel_pos is not None

    @classmethod
    def unsupported(cls, module: Any) -> str | None:
        return unknown_bias(module.rel_pos)

    def forward(self, x: Tensor, shared_rel_pos: Tensor | None = None) -> Tensor:
        # The module's own biases come before those of others.
        output = self._attend(self.qkv(x).flatten(1, -2))
        return self.proj_drop(self.proj(output.unflatten(1, x.shape[1:-1])))

    def _attend(self, qkv: Tensor) -> Tensor:
        """All heads side by side, `(b, i, hd)`, from what is projected, `(b, i, 3hd)`."""
        q, k, v = split_qkv(qkv, heads=self.num_heads, by_head=self.head_first)
        output, _ = attend_to_image(
            q, k, v, self.rel_pos(), scale=self.scale,
            dropout=self.attn_drop.p if self.training else 0.0, weights=False,
        )  # fmt: skip
        return output.flatten(2)


class Attention2d(AttentionCl):
    """For `Attention2d`, whose channels come before rows and columns."""

    def forward(self, x: Tensor, shared_rel_pos: Tensor | None = None) -> Tensor:
        output = self._attend(self.qkv(x).flatten(2).mT)
        return self.proj_drop(self.proj(output.mT.unflatten(2, x.shape[2:])))
