"""torchvision's MViTv2 (Li et al. 2022): queries, keys and values of a video are pooled."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...heads import split_qkv
from ..multiscale import MultiscaleAttention, add_queries

__all__ = ["Attention"]


class Attention(MultiscaleAttention):
    """For `MultiscaleAttention` of `video.mvit`, whose first token is on no grid."""

    signatures = {"forward": ("self", "x", "thw")}
    scaler: float
    residual_pool: bool
    residual_with_cls_embed: bool
    pool_q: nn.Module | None
    pool_k: nn.Module | None
    pool_v: nn.Module | None
    rel_pos_t: nn.Parameter
    rel_pos_h: nn.Parameter
    rel_pos_w: nn.Parameter
    project: nn.Module

    @classmethod
    def applies(cls, module: Any) -> bool:
        return module.rel_pos_h is not None

    def forward(
        self, x: Float[Tensor, "b i e"], thw: tuple[int, int, int]
    ) -> tuple[Float[Tensor, "b j o"], tuple[int, int, int]]:
        q, k, v = split_qkv(self.qkv(x), heads=self.num_heads)
        query_shape = shape = thw
        if self.pool_q is not None:
            q, query_shape = self.pool_q(q, thw)
        if self.pool_k is not None:
            k, shape = self.pool_k(k, thw)
        if self.pool_v is not None:
            v, _ = self.pool_v(v, thw)
        output = self.multiscale_attention(q, k, v, query_shape, shape, scale=self.scaler, prefix=1)
        if self.residual_pool:
            output = add_queries(output, q, kept=0 if self.residual_with_cls_embed else 1)
        return self.project(output.transpose(1, 2).flatten(2)), query_shape

    def tables(self) -> list[Tensor]:
        return [self.rel_pos_t, self.rel_pos_h, self.rel_pos_w]

    def row_of_pair(
        self, queries: int, keys: int, device: torch.device
    ) -> Float[Tensor, "queries keys"]:
        step, key_step = max(keys / queries, 1.0), max(queries / keys, 1.0)
        at = torch.arange(queries, device=device)[:, None] * step
        return at - (torch.arange(keys, device=device) + (1.0 - keys)) * key_step
