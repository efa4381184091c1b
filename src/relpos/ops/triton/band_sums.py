"""A bias's gradient from what the dq kernel sums by offset in a narrow band."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .prepared_call import PreparedCall
from .tuning import TileShape, count_tiles

__all__ = ["BandSums"]


class BandSums(NamedTuple):
    """Sums of `dS` over the queries of each tile in the band, by offset.

    Args:
        sums: `(b h, tiles of queries, tiles of the band, m / n + 1, n)` float32: blocks of offsets,
            of which each tile begins with its predecessor's second; zeros where there is no tile.
        first_row: of the table, at the first offset of all; it may lie before the table.
    """

    sums: Tensor
    first_row: int

    @classmethod
    def empty(cls, call: PreparedCall, shape: TileShape) -> BandSums:
        """Room for those of a call, all zeros.

        Args:
            call: with a narrow band.
            shape: of the tiles.
        """
        m, n = shape.m, shape.n
        tiles = count_tiles(call.table_window.num_rows + m + n, n)
        size = (call.batch * call.heads, count_tiles(call.seqlen_q, m), tiles, m // n + 1, n)
        # A tile's first row is this and whole tiles more, `shear.first_row`.
        first_row = (1 - call.query_start - call.table_first) % n - m - n
        return cls(call.q.new_zeros(size, dtype=torch.float32), first_row)

    def gradient(self, call: PreparedCall, heads: int) -> Tensor:
        """`(heads, rows)` of the window, for 1 or all heads; the end rows count for nothing."""
        of_heads = self.sums.unflatten(0, (call.batch, call.heads))
        found = of_heads.sum((0, 1, 2) if heads == 1 else (0, 2)).view(heads, *self.sums.shape[2:])
        tiles, blocks, n = found.shape[1:]
        rows = found.new_zeros((heads, tiles + blocks - 1, n))
        for block in range(blocks):
            rows[:, block : block + tiles] += found[:, :, block]
        rows = rows.flatten(1)[:, -self.first_row :]
        return rows[:, : call.table_window.num_rows].contiguous()
