"""What a kernel makes of its arguments and hands to its helpers, as one."""

from collections import namedtuple
from typing import Any, NamedTuple

from ..kernel_args import KernelSizes

# `KernelInputs` as `inputs`, and the fields of `KernelSizes`.
KernelArgs = namedtuple("KernelArgs", ("inputs", *KernelSizes._fields))


class Pairs(NamedTuple):
    """The pairs of one tile.

    Args:
        b: number of the sequence.
        h: number of the query head.
        i: numbers of the queries.
        j: numbers of the keys. Both broadcast to the tile: `(m, 1)` and `(1, n)` as a rule;
            `(m, 1)` and `(m, n)` for a tile by offset; `(1, m)` and `(n, 1)` for a transposed one.
    """

    b: Any
    h: Any
    i: Any
    j: Any


class Regions(NamedTuple):
    """Where the regions of `regions.py` begin and end: numbers of tokens, in whole tiles.

    `[begin, band_begin)` is the first region, `[band_begin, band_end)` the band, and
    `[band_end, end)` the last one.
    """

    begin: Any
    band_begin: Any
    band_end: Any
    end: Any


class RowStats(NamedTuple):
    """What backward knows of each query of a tile, `(m,)` each.

    Args:
        row_max: the largest score; inf for a query without keys.
        inverse_sum: `1 / sum_j exp(score_j - row_max)`; 0 for a query without keys.
        delta: `dO_i . o_i - d_lse_i`.
    """

    row_max: Any
    inverse_sum: Any
    delta: Any
