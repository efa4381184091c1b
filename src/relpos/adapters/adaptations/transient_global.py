"""LongT5's transient-global encoder (Guo et al. 2022, section 3.2): sums of blocks are keys too.

    s_ij = q_i . k_j + b[j - i]             |j - i| <= radius
    s_ig = q_i . kappa_g + c[g - n_i]       n_i = min(i // size, last)

    kappa_g = W_k LayerNorm(sum of x_i with n_i = g)

under one softmax, `last` being a text's last whole block: tokens behind it count as its own.
The original has `i x g` biases, and a copy of the keys `kappa` for each block of queries. Here the
keys come in three calls whose results are merged: the tokens, the blocks as queries within whole
blocks see them, and the blocks as those behind the last one do.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from ...ops import attention, merge
from ...terms import OffsetTable, Terms
from ..heads import project_heads
from ..masks import key_padding
from .buckets import NEVER_END, t5_buckets_end
from .longt5 import LocalAttention

__all__ = ["TransientGlobalAttention"]


class TransientGlobalAttention(LocalAttention):
    """For `LongT5TransientGlobalAttention`; asked for its weights, as before."""

    scheme = "T5 bias, local and to transient global tokens"
    global_block_size: int
    global_relative_attention_bias: Any
    global_input_layer_norm: nn.Module

    @classmethod
    def unsupported(cls, module: Any) -> str | None:
        size = module.global_block_size
        if size & (size - 1):
            return (
                "its blocks are not of 1, 2, 4, ... tokens, so that rounding may move their edges"
            )
        ends = t5_buckets_end(
            module.relative_attention_num_buckets, module.relative_attention_max_distance,
            bidirectional=not module.is_decoder,
        )  # fmt: skip
        return None if ends else NEVER_END

    def original_forward(
        self, hidden_states: Tensor, mask: Tensor | None = None, *others: Any
    ) -> Any:
        if mask is not None and mask.dtype == torch.bool:
            mask = mask.long()  # it computes with its numbers
        return super().original_forward(hidden_states, mask, *others)

    def _tables(self, x: Tensor) -> Tensor:
        """`(h, r)`, side by side: a row for each offset of tokens, and for each of blocks."""
        reach = self.relative_attention_max_distance
        return torch.cat([
            super()._tables(x), self._rows(self.global_relative_attention_bias, reach, x.device)
        ], 1)  # fmt: skip

    def _heads(self, x: Tensor, mask: Tensor, tables: Tensor) -> Tensor:
        radius, width, tokens = self.local_radius, self.key_value_proj_dim, mask.bool()
        near, far = tables[:, : 2 * radius + 1], tables[:, 2 * radius + 1 :]
        last = tokens[:, self.global_block_size - 1 :: self.global_block_size].sum(1) - 1
        q, k, v = project_heads(x, self.q, self.k, self.v, width=width)
        sums = self.global_input_layer_norm(self._sums(x, tokens, last))
        keys, values = project_heads(sums, self.k, self.v, width=width)
        dropout = self.dropout if self.training else 0.0
        parts = [
            attention(
                q, k, v, Terms(bias=OffsetTable(near, -radius)), mask=key_padding(tokens),
                scale=1.0, window=(radius, radius), dropout=dropout, return_lse=True,
            ),
            self._within(q, keys, values, far, last, dropout),
            self._behind(q, keys, values, far, last, dropout),
        ]  # fmt: skip
        output, _ = merge(*zip(*parts, strict=True))
        return output.transpose(1, 2)

    def _sums(
        self, x: Float[Tensor, "b i e"], tokens: Bool[Tensor, "b i"], last: Int64[Tensor, "b"]
    ) -> Float[Tensor, "b g e"]:
        """The sums over each whole block's tokens, those behind the last block with it.

        And a zero, which nobody sees: there is a block in the shortest text too.
        """
        x = _in_blocks(x.masked_fill(~tokens[..., None], 0), self.global_block_size).sum(2)
        block, last = torch.arange(x.shape[1], device=x.device)[:, None], last[:, None, None]
        rest = x.masked_fill(block < last, 0).sum(1, keepdim=True)
        return torch.where(block == last, rest, x.masked_fill(block > last, 0))

    def _within(
        self, q: Tensor, k: Tensor, v: Tensor, table: Tensor, last: Tensor, dropout: float
    ) -> tuple[Tensor, Tensor]:
        """The blocks as tokens up to the last whole one see them, all in one block alike.

        The first tokens of all blocks are a line whose offsets are those of blocks, the second ones
        are another: each is a head of its own, and a head of the keys serves all of its group.
        """
        size, (heads, length) = self.global_block_size, q.shape[1:3]
        lines = _in_blocks(q, size).transpose(2, 3).flatten(1, 2)  # (b, h * size, n, d)
        block = torch.arange(lines.shape[2], device=q.device)
        bias = OffsetTable(table.repeat_interleave(size, 0), -self.relative_attention_max_distance)
        results = attention(
            lines, k, v, Terms(bias=bias), scale=1.0, query_start=0, dropout=dropout,
            key_ranges=_up_to(last, block <= last[:, None]), return_lse=True,
        )  # fmt: skip
        output, lse = (
            x.unflatten(1, (heads, size)).transpose(2, 3).flatten(2, 3)[:, :, :length]
            for x in results
        )
        return output, lse

    def _behind(
        self, q: Tensor, k: Tensor, v: Tensor, table: Tensor, last: Tensor, dropout: float
    ) -> tuple[Tensor, Tensor]:
        """The blocks as tokens behind the last whole one see them: from there."""
        reach = self.relative_attention_max_distance
        offsets = torch.arange(k.shape[2], device=q.device) - last[:, None]  # (b, g)
        bias = table[:, offsets.clamp(-reach, reach) + reach].transpose(0, 1)[:, :, None]
        block = torch.arange(q.shape[2], device=q.device) // self.global_block_size
        return attention(
            q, k, v, mask=bias, scale=1.0, dropout=dropout,
            key_ranges=_up_to(last, block > last[:, None]), return_lse=True,
        )  # fmt: skip


def _in_blocks(x: Float[Tensor, "*b i d"], size: int) -> Float[Tensor, "*b n s d"]:
    """`x` with zeros behind it: its whole blocks and one more, of what there is behind them."""
    return nn.functional.pad(x, (0, 0, 0, size - x.shape[-2] % size)).unflatten(-2, (-1, size))


def _up_to(last: Int64[Tensor, "b"], queries: Bool[Tensor, "b i"]) -> Int64[Tensor, "b i 2"]:
    """The keys `0..last` for the named queries, none for others."""
    ends = (last[:, None] + 1) * queries
    return torch.stack([torch.zeros_like(ends), ends], -1)
