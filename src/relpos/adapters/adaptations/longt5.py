"""LongT5's local encoder (Guo et al. 2022): T5's bias among the keys within a radius.

The original cuts the sequence in blocks, each beside its two neighbours, and masks what is too far.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...terms import OffsetTable, Terms
from ...traced_sizes import plain_size
from ..adapted import Adapted
from ..attend import attend
from ..heads import project_heads
from .buckets import rows_of_buckets

__all__ = ["LocalAttention"]


class LocalAttention(Adapted):
    """For `LongT5LocalAttention`; asked for its weights, which are those of blocks, as before."""

    scheme = "T5 bias, local"
    together = True
    signatures = {
        "forward": ("self", "hidden_states", "mask", "position_bias", "output_attentions"),
        "_relative_position_bucket": (
            "relative_position", "bidirectional", "num_buckets", "max_distance",
        ),
    }  # fmt: skip
    is_decoder: bool
    has_relative_attention_bias: bool
    relative_attention_num_buckets: int
    relative_attention_max_distance: int
    relative_attention_bias: Any
    _relative_position_bucket: Any
    local_radius: int
    block_len: int
    n_heads: int
    key_value_proj_dim: int
    dropout: float
    q: nn.Module
    k: nn.Module
    v: nn.Module
    o: nn.Module

    def forward(
        self,
        hidden_states: Tensor,
        mask: Tensor | None = None,
        position_bias: Tensor | None = None,
        output_attentions: bool = False,
    ) -> Any:
        blocks = position_bias is not None and position_bias.ndim != 2
        # Without a mask the original sees all of the three blocks.
        if output_attentions or mask is None or blocks:
            return self.original_forward(hidden_states, mask, position_bias, output_attentions)
        tables = self._tables(hidden_states) if position_bias is None else position_bias
        heads = self._heads(hidden_states, mask, tables)
        return self.o(heads.flatten(2)), tables

    def _heads(self, x: Tensor, mask: Tensor, tables: Tensor) -> Tensor:
        """The heads' output, `(b, i, h, d)`.

        Args:
            x: the layer's input.
            mask: as the encoder makes it for its layers.
            tables: as `_tables` makes them.
        """
        q, k, v = project_heads(x, self.q, self.k, self.v, width=self.key_value_proj_dim)
        output, _ = attend(
            q, k, v, Terms(bias=OffsetTable(tables, -(plain_size(tables, 1) // 2))),
            mask=self._tokens(mask, q.shape[2]), scale=1.0,
            window=(self.local_radius, self.local_radius),
            dropout=self.dropout if self.training else 0.0,
        )  # fmt: skip
        return output

    def _tables(self, x: Tensor) -> Tensor:
        """`(h, r)`, a row for each offset within the radius, which all layers of an encoder share.

        Args:
            x: the input of the first layer, which makes them.
        """
        if not self.has_relative_attention_bias:
            return x.new_zeros(1, 1).expand(self.n_heads, 1)
        return self._rows(self.relative_attention_bias, self.local_radius, x.device)

    def _rows(self, bias: nn.Embedding, reach: int, device: torch.device) -> Tensor:
        """`(h, r)`, those of a bias for the offsets `-reach..reach`."""
        buckets = self._relative_position_bucket(
            torch.arange(-reach, reach + 1, device=device),
            bidirectional=not self.is_decoder,
            num_buckets=self.relative_attention_num_buckets,
            max_distance=self.relative_attention_max_distance,
        )
        return rows_of_buckets(bias, buckets)

    def _tokens(self, mask: Tensor, length: int) -> Tensor:
        """`(b, 1, 1, j)` of the mask of blocks, `(b, 1, n, i, 3i)`, where a token sees itself."""
        own = mask.diagonal(self.block_len, -2, -1)  # (b, 1, n, i)
        return own.flatten(2)[:, :, None, :length].bool()
