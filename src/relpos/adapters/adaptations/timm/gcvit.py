"""timm's GC ViT (Hatamizadeh et al. 2023): windows, some with queries of the image."""

from __future__ import annotations

from contextlib import suppress
from inspect import getsource
from typing import Any

from torch import Tensor

from ...heads import split_heads, split_qkv
from .attention import BiasedAttention

__all__ = ["WindowAttention"]


class WindowAttention(BiasedAttention):
    """For `WindowAttentionGlobal`."""

    scheme = "joint bias of two axes, in windows"
    signatures = {"forward": ("self", "x", "q_global")}
    head_dim: int
    use_global: bool
    rel_pos: Any

    @classmethod
    def unsupported(cls, module: Any) -> str | None:
        with suppress(OSError):
            if "repeat_interleave" in getsource(type(module).forward):
                return None
        return "this version of timm repeats an image's queries in another order than 1.0.31"

    def forward(self, x: Tensor, q_global: Tensor | None = None) -> Tensor:
        if self.use_global and q_global is not None:
            # The windows of an image come one after the other, and see its queries.
            q = split_heads(q_global.flatten(1, -2), width=self.head_dim)
            q = q.repeat_interleave(x.shape[0] // q.shape[0], 0)
            k, v = (split_heads(part, width=self.head_dim) for part in self.qkv(x).chunk(2, dim=-1))
        else:
            q, k, v = split_qkv(self.qkv(x), heads=self.num_heads)
        return self.projected(self.attend(q, k, v, self.rel_pos()))
