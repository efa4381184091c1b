"""timm's vision transformers with relative biases (`vit_relpos_*`, `vit_srelpos_*`).

Each layer has biases of its own, or the model one for all of them, which it hands to the layers.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ...adapted import Adapted
from ...heads import split_qkv
from ..image_bias import ImageBias
from .attention import BiasedAttention
from .biases import SharedBias

__all__ = ["Attention", "Model"]


class Attention(BiasedAttention):
    """For `RelPosAttention`; given a bias of all pairs, or without any, it runs as before."""

    signatures = {"forward": ("self", "x", "shared_rel_pos")}
    together = True
    q_norm: nn.Module
    k_norm: nn.Module

    def forward(self, x: Tensor, shared_rel_pos: Any = None) -> Tensor:
        bias = shared_rel_pos if self.rel_pos is None else self.rel_pos()
        if not isinstance(bias, ImageBias):
            return self.original_forward(x, shared_rel_pos)
        q, k, v = split_qkv(self.qkv(x), heads=self.num_heads)
        return self.projected(self.attend(self.q_norm(q), self.k_norm(k), v, bias))


class Model(Adapted):
    """For `VisionTransformerRelPos`, which runs as before: it asks its module for the biases."""

    together = True
    parts = {"shared_rel_pos": SharedBias}

    @classmethod
    def applies(cls, module: Any) -> bool:
        return module.shared_rel_pos is not None
