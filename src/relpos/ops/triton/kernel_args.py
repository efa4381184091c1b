"""What every kernel receives: the tensors and sizes of one call, and what it is compiled for.

Axes: `b` batch, `h` query heads, `g` key heads, `i` queries, `j` keys, `r` table rows, `s` the
coordinates along all axes of a grid, one axis after another. A tensor is its address (`ptr`) and
strides in elements; what is absent is None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = [
    "BIAS_MARGIN",
    "KernelInputs",
    "KernelSizes",
    "PairTensor",
    "Specialization",
    "StoredScores",
    "TableTensor",
    "TokenTensor",
]


#: Rows before a bias's first one and after its last: the tokens of a tile's two sides, or more.
BIAS_MARGIN = 256


class TokenTensor(NamedTuple):
    """A tensor `(b, h, tokens, width)` whose last axis is contiguous.

    Strides are 0 along an axis of size 1.
    """

    ptr: Any
    stride_b: Any
    stride_h: Any
    stride_n: Any


class PairTensor(NamedTuple):
    """A tensor that broadcasts to `(b, h, i, j)`: strides are 0 along an axis of size 1."""

    ptr: Any
    stride_b: Any
    stride_h: Any
    stride_i: Any
    stride_j: Any


class TableTensor(NamedTuple):
    """A contiguous table `(h or 1, r, width)` or `(h or 1, r)`: `stride_h` is 0 where it is shared.

    The position tables of a call all cover the same window of offsets, and clamp beyond it.
    """

    ptr: Any
    stride_h: Any


class KernelInputs(NamedTuple):
    """The tensors of a call, and the numbers that do not depend on its lengths.

    Args:
        q: TokenTensor `(b, h, i, head_dim)`.
        k: TokenTensor `(b, g, j, head_dim)`.
        v: TokenTensor `(b, g, j, value_dim)`.
        q_rel: TokenTensor `(b, h, i, rel_dim)`: dotted with the table of keys in place of `q`.
        keys_table: TableTensor `(h or 1, r, rel_dim)`.
        queries_table: TableTensor `(h or 1, r, head_dim)`.
        bias_table: TableTensor `(h or 1, r)` float32, in logits, or over the scale where
            `bias_over_scale`; with `BIAS_MARGIN` rows more at either end, which equal the end's: no
            tile of the band reaches beyond.
        values_table: TableTensor `(h or 1, r, value_dim)`.
        mask: PairTensor, uint8 (nonzero: the pair takes part) or logits to add.
        documents: TokenTensor `(b, j)` without heads, int64; negative: of no document.
        query_documents: TokenTensor `(b, i)`, likewise.
        key_ranges: `(b, i, 2)` int32: the first key that a query may see, and the one after the
            last; within `0..j`.
        keys_in_ranges: `(b, j)` uint8: whether a key is in the range of some query.
        tile_key_ranges: `(b, tiles of queries, 2)` int32: the keys that a tile of queries may see,
            from the first to the one after the last, in whole tiles.
        tile_query_ranges: `(b, tiles of keys, 2)` int32: the queries that may see a tile of keys.
        key_axis_logits: TokenTensor `(b, h, i, s)`, of a grid: what each coordinate of a key adds
            to the score of a query, in logits (relative logits per axis).
        query_axis_logits: TokenTensor `(b, h, j, s)`: what each coordinate of a query adds to the
            score of a key.
        joint_bias: TableTensor `(h or 1, entries)`, in logits: one for each offset on a grid.
        key_coordinates: `(axes, j)` int32: the number of a key's coordinate along an axis, among
            those of all axes: its column of `key_axis_logits`; -1 for a token off the grid.
        query_coordinates: `(axes, i)` int32: the same for queries and `query_axis_logits`.
        key_joint_index: `(j,)` int32. The entry of `joint_bias` for a pair is
            `key_joint_index[j] - query_joint_index[i]`.
        query_joint_index: `(i,)` int32.
        key_marks: TokenTensor `(j, s)` without sequences and heads, in the dtype of `q`: 1 in the
            columns of a key's coordinates, 0 elsewhere; `block_key_coordinates` columns.
        query_marks: TokenTensor `(i, s)`: the same for queries.
        axis_windows: TokenTensor `(b or 1, axes, i, 2)` int32: the first and the last coordinate of
            a key that a query may see along an axis, by their numbers; keys off the grid are seen.
        seed: `()` int64, of the dropout.
        heads: query heads.
        heads_per_kv_head: query heads that share a key head.
        scale: of the scores.
        softcap: c of `c tanh(s / c)`, in logits.
        dropout_threshold: a weight is dropped where a draw of 32 bits is below it.
        keep_scale: 1 / (probability that a weight is kept).
        dropout_origin: `(5,)` int64, the numbers of `inputs.DropoutOrigin`; None for a whole call.
    """

    q: Any
    k: Any
    v: Any
    q_rel: Any
    keys_table: Any
    queries_table: Any
    bias_table: Any
    values_table: Any
    mask: Any
    documents: Any
    query_documents: Any
    key_ranges: Any
    keys_in_ranges: Any
    tile_key_ranges: Any
    tile_query_ranges: Any
    key_axis_logits: Any
    query_axis_logits: Any
    joint_bias: Any
    key_coordinates: Any
    query_coordinates: Any
    key_joint_index: Any
    query_joint_index: Any
    key_marks: Any
    query_marks: Any
    axis_windows: Any
    seed: Any
    heads: Any
    heads_per_kv_head: Any
    scale: Any
    softcap: Any
    dropout_threshold: Any
    keep_scale: Any
    dropout_origin: Any


class KernelSizes(NamedTuple):
    """The numbers that differ from call to call: kernels are not compiled anew for them.

    Triton compiles for integers that are 1, or a multiple of 16, unless it is told not to, and of
    those in a tuple it cannot be told. So they are arguments of their own, by these names.

    Args:
        seqlen_q: number of queries.
        seqlen_k: number of keys.
        query_start: position of the first query.
        table_first: offset of the tables' row 0.
        table_rows: of the tables.
        min_offset: the least offset at which a pair takes part; None without a limit.
        max_offset: the largest one; None without a limit.
        num_tiles: of the kernel; as many programs, or for each the splits of the keys.
    """

    seqlen_q: Any
    seqlen_k: Any
    query_start: Any
    table_first: Any
    table_rows: Any
    min_offset: Any
    max_offset: Any
    num_tiles: Any


class StoredScores(NamedTuple):
    """`dS` of a chunk of a call's pairs, for the kernels that multiply it (`stored_scores.py`).

    A chunk is some queries, the keys that they see, and some key heads with all query heads that
    share them.

    Args:
        d_scores: `(query heads, queries, keys)` of the chunk, in the dtype of `k`: whole tiles.
            Beside each row are zeros, as many as a tile has queries and keys, before it and after.
        weights: the same for the weights that dropout leaves, or None.
        stride_h: elements from one head to the next one.
        stride_i: elements from one query to the next one.
    """

    d_scores: Any
    weights: Any
    stride_h: Any
    stride_i: Any


@dataclass(frozen=True)
class Specialization:
    """What a kernel is compiled for, besides how its arguments lie; found again by these fields.

    Hence sizes that follow from others are fields too, not properties.

    Args:
        block_m: queries in a tile, `m`.
        block_n: keys in a tile, `n`.
        head_dim: width of queries and keys.
        rel_dim: width of `q_rel`, or `head_dim`.
        value_dim: width of the values.
        block_head_dim: columns of a tile: the power of two from `head_dim` on, 16 at least.
        block_rel_dim: the same for `rel_dim`.
        block_value_dim: the same for `value_dim`.
        has_keys: whether there is a `keys_table`.
        has_queries: whether there is a `queries_table`.
        has_bias: whether there is a `bias_table`.
        bias_over_scale: whether the bias comes to the products, divided by the scale: a tile's bias
            is where the products start then.
        has_values: whether there is a `values_table`.
        has_q_rel: whether `q_rel` is dotted with the table of keys in place of `q`.
        is_causal: whether keys ahead of the query are hidden.
        has_narrow_band: whether there is a band, in which few of a tile's keys are.
        left_sees_ahead: whether the left region may hold keys ahead of a query (it has to be
            masked then too, where `is_causal`).
        ragged_keys: whether some tile of keys is not full.
        mask_kind: "none", "boolean" or "additive".
        mask_has_i: whether the mask has an axis of queries.
        mask_has_j: whether the mask has an axis of keys.
        has_documents: whether there are documents.
        has_key_ranges: whether each query has a range of keys.
        has_axis_windows: whether keys are hidden by windows or ranges along a grid's axes.
        has_tile_ranges: whether there are ranges by tile, for one of these.
        has_min_offset: whether keys far behind the query are hidden, by a window.
        has_max_offset: whether keys far ahead of the query are hidden, by a window.
        has_softcap: whether scores are capped.
        scale_last: whether the exponential takes the scale, not the scores: where nothing in logits
            is added to them pair by pair, nothing caps them, and the scale is positive.
        in_bits: whether the largest score of a row is kept in bits, not in logits: the same for all
            kernels of a call, whatever their tiles.
        has_dropout: whether weights are dropped.
        has_dropout_origin: whether as in a larger call, of which this one is a part.
        num_axes: of a grid; 0 for a sequence.
        num_key_coordinates: coordinates of keys along all axes together, `s` of `key_axis_logits`.
        num_query_coordinates: those of queries, `s` of `query_axis_logits`.
        block_key_coordinates: columns of a tile: the power of two from `num_key_coordinates` on,
            16 at least.
        block_query_coordinates: the same for `num_query_coordinates`.
        grid_by_rows: whether the keys of a tile are those of one row of a grid of two axes, then
            `axis_width` of `n` (`kernels/grid_rows.py`).
        axis_width: keys along the last axis; 0 for a sequence.
        axes_by_product: whether the numbers for each coordinate are multiplied with marks
            (`kernels/grid_products.py`), not read for each pair.
        has_key_axis_logits: whether the grid has such terms.
        has_query_axis_logits: whether the grid has such terms.
        has_joint_bias: whether the grid has one.
        has_axis_weights: whether weights are summed by coordinate of the key, for a grid's values.
        int64_offsets: whether the address of an element within one head may exceed 32 bits.
        precision: of float32 matrix products, "ieee", "tf32x3" or "tf32".
    """

    block_m: int
    block_n: int
    head_dim: int
    rel_dim: int
    value_dim: int
    block_head_dim: int
    block_rel_dim: int
    block_value_dim: int
    has_keys: bool
    has_queries: bool
    has_bias: bool
    bias_over_scale: bool
    has_values: bool
    has_q_rel: bool
    is_causal: bool
    has_narrow_band: bool
    left_sees_ahead: bool
    ragged_keys: bool
    mask_kind: str
    mask_has_i: bool
    mask_has_j: bool
    has_documents: bool
    has_key_ranges: bool
    has_axis_windows: bool
    has_tile_ranges: bool
    has_min_offset: bool
    has_max_offset: bool
    has_softcap: bool
    scale_last: bool
    in_bits: bool
    has_dropout: bool
    has_dropout_origin: bool
    num_axes: int
    num_key_coordinates: int
    num_query_coordinates: int
    block_key_coordinates: int
    block_query_coordinates: int
    grid_by_rows: bool
    axis_width: int
    axes_by_product: bool
    has_key_axis_logits: bool
    has_query_axis_logits: bool
    has_joint_bias: bool
    has_axis_weights: bool
    int64_offsets: bool
    precision: str
