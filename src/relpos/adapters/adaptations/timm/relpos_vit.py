"""timm's vision transformers with relative biases (`vit_relpos_*`, `vit_srelpos_*`).

Each layer has biases of its own, or the model one for all of them, which it hands to the layers.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ...adapted import Adapted
from ...heads import split_qkv
from ..image_bias import ImageBias, attend_to_image
from .biases import OffsetBias, SharedBias, unknown_bias

__all__ = ["Attention", "Model"]


class Attention(Adapted):
    """For `RelPosAttention`; given a bias of all pairs, or without any, it runs as before."""

    scheme = "joint bias of two axes"
    signatures = {"forward": ("self", "x", "shared_rel_pos")}
    weights_dropout = "attn_drop"
    parts = {"rel_pos": OffsetBias}
    together = True
    num_heads: int
    scale: float
    qkv: nn.Module
    q_norm: nn.Module
    k_norm: nn.Module
    rel_pos: nn.Module | None
    attn_drop: nn.Dropout
    proj: nn.Module
    proj_drop: nn.Module

    @classmethod
    def unsupported(cls, module: Any) -> str | None:
        return unknown_bias(module.rel_pos)

    def forward(self, x: Tensor, shared_rel_pos: Any = None) -> Tensor:
        bias = shared_rel_pos if self.rel_pos is None else self.rel_pos()
        if not isinstance(bias, ImageBias):
            return self.original_forward(x, shared_rel_pos)
        q, k, v = split_qkv(self.qkv(x), heads=self.num_heads)
        output, _ = attend_to_image(
            self.q_norm(q), self.k_norm(k), v, bias, scale=self.scale,
            dropout=self.attn_drop.p if self.training else 0.0, weights=False,
        )  # fmt: skip
        return self.proj_drop(self.proj(output.flatten(2)))


class Model(Adapted):
    """For `VisionTransformerRelPos`, which runs as before: it asks its module for the biases."""

    together = True
    parts = {"shared_rel_pos": SharedBias}

    @classmethod
    def applies(cls, module: Any) -> bool:
        return module.shared_rel_pos is not None

    @classmethod
    def unsupported(cls, module: Any) -> str | None:
        return unknown_bias(module.shared_rel_pos)
