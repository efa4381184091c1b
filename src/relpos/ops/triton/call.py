"""What every kernel receives: the tensors of one call, and the settings it is compiled for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = ["Call", "Pairs", "Rows", "Settings", "SizedCall", "Sizes", "Table", "power_of_two"]


class Rows(NamedTuple):
    """A tensor `(b, h, n, width)` whose last axis is contiguous: its address and strides."""

    data: Any
    b: Any
    h: Any
    n: Any


class Pairs(NamedTuple):
    """A tensor that broadcasts to `(b, h, i, j)`: strides are 0 along an axis of size 1."""

    data: Any
    b: Any
    h: Any
    i: Any
    j: Any


class Table(NamedTuple):
    """A table `(h or 1, r, width)`: the stride of its heads is 0 where they share it."""

    data: Any
    h: Any


class Call(NamedTuple):
    """The tensors and settings of one call; what is absent is None.

    Args:
        q: queries.
        k: keys.
        v: values.
        p: what meets the keys' table in place of the queries (`q_rel`).
        keys_table: all four tables cover the same window of offsets, contiguous, and clamp.
        queries_table: see `keys_table`.
        bias_table: see `keys_table`; one number wide.
        values_table: see `keys_table`.
        mask: boolean or additive.
        documents: `(b, j)` as int64, as `Rows` without heads.
        query_reach: `(b, tiles, 2)` int32, the tiles of keys that one of queries sees at most:
            their first token, and the one after their last.
        key_reach: `(b, tiles, 2)` int32, likewise the queries that a tile of keys is seen by.
        by_key: a grid's terms by place of the key, `(b, h, i, s)`, in logits.
        by_query: a grid's terms by place of the query, `(b, h, j, s)`, in logits.
        joint_bias: a grid's joint bias, flat.
        key_places: `(axes, j)` int32, where `by_key` has the place of a key; -1 for none.
        query_places: `(axes, i)` int32, where `by_query` has the place of a query; -1 for none.
        key_lines: `(j,)` int32; a pair meets entry `key_lines[j] - query_lines[i]` of `joint_bias`.
        query_lines: `(i,)` int32.
        seed: of the dropout, int64.
        slabs: float32 workspace, `Settings.slab` numbers for each program.
        heads: query heads.
        repeat: query heads to one key head.
        scale: of the scores.
        drop: a weight is dropped where a draw of 32 bits is below it.
        kept: 1 / (probability that a weight is kept).
    """

    q: Any
    k: Any
    v: Any
    p: Any
    keys_table: Any
    queries_table: Any
    bias_table: Any
    values_table: Any
    mask: Any
    documents: Any
    query_reach: Any
    key_reach: Any
    by_key: Any
    by_query: Any
    joint_bias: Any
    key_places: Any
    query_places: Any
    key_lines: Any
    query_lines: Any
    seed: Any
    slabs: Any
    heads: Any
    repeat: Any
    scale: Any
    drop: Any
    kept: Any


class Sizes(NamedTuple):
    """The numbers that differ from call to call: kernels are not compiled anew for them.

    Triton compiles for integers that are 1, or a multiple of 16, unless it is told not to, and of
    those in a tuple it cannot be told. So they are arguments of their own, by these names.

    Args:
        length: number of queries.
        key_length: number of keys.
        start: position of the first query.
        window_first: offset of the tables' row 0.
        window_rows: of the tables.
        all_tiles: of the kernel, dealt out among its programs.
    """

    length: Any
    key_length: Any
    start: Any
    window_first: Any
    window_rows: Any
    all_tiles: Any


class SizedCall(NamedTuple):
    """What a kernel makes of the two for its helpers: a `Call`, and the fields of `Sizes`."""

    given: Any
    length: Any
    key_length: Any
    start: Any
    first: Any
    rows: Any
    tiles: Any


@dataclass(frozen=True)
class Settings:
    """What a kernel is compiled for; compiled kernels are found again by these fields alone.

    Args:
        m: queries in a tile.
        n: keys in a tile.
        d: width of queries and keys.
        dp: width of what meets the keys' table.
        dv: width of the values.
        block_d: the power of two from `d` on, 16 at least; likewise the other blocks.
        block_p: see `block_d`.
        block_v: see `block_d`.
        keys: whether there is such a table; likewise `queries`, `bias`, `values`.
        queries: see `keys`.
        bias: see `keys`.
        values: see `keys`.
        own_p: whether `p` are not the queries.
        causal: whether keys ahead of the query are hidden.
        causal_left: whether the left region may hold keys ahead of the query.
        ragged: whether the last tile of keys is not full.
        mask: "none", "boolean" or "additive".
        mask_i: whether the mask has an axis of queries.
        mask_j: whether the mask has an axis of keys.
        documents: whether there are documents.
        dropout: whether weights are dropped.
        axes: of a grid; 0 on a line.
        key_columns: places of the keys on all axes of a grid together.
        query_columns: places of the queries.
        block_places: the power of two from `key_columns` on, 16 at least.
        block_query_places: that from `query_columns` on.
        by_key: whether the grid has such terms; likewise `by_query`, `joint_bias`.
        by_query: see `by_key`.
        joint_bias: see `by_key`.
        places: whether weights are summed by place of the key.
        ring: numbers in a row of a slab: the power of two from `m + 2 n` on.
        whole: whether a slab has a place for each row of the tables (`kernels/band.py`).
        slab: float32 numbers of workspace for each program.
        long: whether an offset within one head may exceed 32 bits.
        precision: of float32 matrix products, "ieee" or "tf32".
    """

    m: int
    n: int
    d: int
    dp: int
    dv: int
    block_d: int
    block_p: int
    block_v: int
    keys: bool
    queries: bool
    bias: bool
    values: bool
    own_p: bool
    causal: bool
    causal_left: bool
    ragged: bool
    mask: str
    mask_i: bool
    mask_j: bool
    documents: bool
    dropout: bool
    axes: int
    key_columns: int
    query_columns: int
    block_places: int
    block_query_places: int
    by_key: bool
    by_query: bool
    joint_bias: bool
    places: bool
    ring: int
    whole: bool
    slab: int
    long: bool
    precision: str


def power_of_two(n: int) -> int:
    """The smallest from `n` on."""
    return 1 << (n - 1).bit_length()
