"""The `conformer` package: Shaw's keys, one table for all heads, clamped beyond `max_pos_emb`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...terms import OffsetTable, Terms
from ..adapted import Adapted
from ..attend import attend
from ..heads import split_heads
from ..masks import key_padding

__all__ = ["Attention"]


class Attention(Adapted):
    """For `Attention`; given a `context`, it runs as before."""

    scheme = "Shaw keys"
    weights_dropout = ""
    signatures = {"forward": ("self", "x", "context", "mask", "context_mask")}
    heads: int
    scale: float
    max_pos_emb: int
    to_q: nn.Module
    to_kv: nn.Module
    to_out: nn.Module
    rel_pos_emb: nn.Embedding
    dropout: nn.Dropout

    @classmethod
    def takes_window(cls, module: Any) -> bool:
        return True

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        mask: Tensor | None = None,
        context_mask: Tensor | None = None,
    ) -> Tensor:
        if context is not None or context_mask is not None:
            return self.original_forward(x, context, mask, context_mask)
        q, k, v = (
            split_heads(heads, width=heads.shape[-1] // self.heads)
            for heads in (self.to_q(x), *self.to_kv(x).chunk(2, dim=-1))
        )
        # Their rows are of query minus key.
        backwards = torch.arange(2 * self.max_pos_emb, -1, -1, device=q.device)
        rows = self.rel_pos_emb(backwards)[None].to(q.dtype)
        output, _ = attend(
            q, k, v, Terms(keys=OffsetTable(rows, -self.max_pos_emb)),
            mask=None if mask is None else key_padding(mask), scale=self.scale, window=self.window,
        )  # fmt: skip
        if mask is not None:
            # There, queries of padding give every key the same weight, and convolutions over time
            # hand what comes of it on to real frames.
            output = torch.where(mask[:, :, None, None], output, v.mean(2)[:, None])
        return self.dropout(self.to_out(output.flatten(2)))
