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
        j0: number of the tile's first key.
        c: `j - j0`, as `j`: a constant to the compiler, so that what is compared with it costs an
            instruction less. Of keys that a row of a grid does not have it means nothing.
    """

    b: Any
    h: Any
    i: Any
    j: Any
    j0: Any
    c: Any


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
        row_max: the largest score, in logits, or in bits where `SPEC.in_bits`; inf for a query
            without keys.
        inverse_sum: 1 over the sum of `exp(score - row_max)`; 0 for a query without keys.
        delta: `dO_i . o_i - d_lse_i`.
    """

    row_max: Any
    inverse_sum: Any
    delta: Any


class InTwoParts(NamedTuple):
    """Rows of numbers `(tokens, s)` as `(high + low) * factor`, for products in 16 bits.

    Args:
        high: in the dtype of the inputs.
        low: what that leaves, rounded.
        factor: `(tokens,)`, powers of two; 1 but in float16.
    """

    high: Any
    low: Any
    factor: Any
