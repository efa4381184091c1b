"""timm's MaxViT (Tu et al. 2022), CoAtNet (Dai et al. 2021) and their kin.

MaxViT attends within windows, then over grids of tokens that lie far apart; to the attention both
are pieces of the batch.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...heads import split_qkv
from .attention import BiasedAttention

__all__ = ["Attention2d", "AttentionCl"]


class AttentionCl(BiasedAttention):
    """For `AttentionCl`, whose channels come last."""

    signatures = {"forward": ("self", "x", "shared_rel_pos")}
    head_first: bool
    rel_pos: Any

    @classmethod
    def applies(cls, module: Any) -> bool:
        return module.rel_pos is not None

    def forward(self, x: Tensor, shared_rel_pos: Tensor | None = None) -> Tensor:
        # The module's own biases come before those of others.
        output = self._attended(self.qkv(x).flatten(1, -2))
        return self.projected(output.unflatten(1, x.shape[1:-1]))

    def _attended(self, qkv: Tensor) -> Tensor:
        """All heads side by side, `(b, i, hd)`, from what is projected, `(b, i, 3hd)`."""
        q, k, v = split_qkv(qkv, heads=self.num_heads, by_head=self.head_first)
        return self.attend(q, k, v, self.rel_pos())


class Attention2d(AttentionCl):
    """For `Attention2d`, whose channels come before rows and columns."""

    def forward(self, x: Tensor, shared_rel_pos: Tensor | None = None) -> Tensor:
        output = self._attended(self.qkv(x).flatten(2).mT)
        return self.projected(output.mT.unflatten(2, x.shape[2:]).contiguous())
