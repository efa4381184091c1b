"""Backward of what has a number for each pair: `dS`, summed over what the number is for.

An additive mask has one, or one for each query or key where it is broadcast along the others; a
grid's joint bias has one that many pairs share, by whose offsets it is summed later.

q (m, d)    q_rel (m, rel_dim)    d_o (m, dv)    k (n, d)    v (n, dv)    d_scores, acc (m, n)
"""

import triton
import triton.language as tl

from ..kernel_args import KernelSizes
from .grid_products import load_key_marks, load_query_logits, load_query_marks
from .recompute import recompute_d_scores
from .regions import ANY, has_pairs
from .structs import KernelArgs
from .tiles import load_keys, load_outputs, load_queries, load_values, zeros


@triton.jit(
    do_not_specialize=(*KernelSizes._fields, "batch", "sum_batch", "sum_heads", "first", "end")
)
def dpairs_kernel(
    inputs, seqlen_q, seqlen_k, query_start, table_first, table_rows, min_offset, max_offset,
    num_tiles,
    softmax, d_out, delta, d_axis_weights, sums, batch, sum_batch, sum_heads, first, end,
    SPEC: tl.constexpr, HAS_I: tl.constexpr, HAS_J: tl.constexpr, OF_MASK: tl.constexpr,
):  # fmt: skip
    """One tile of the sums.

    Reads, besides `inputs`:
        softmax: `(2, b, h, i)`, of the forward kernel.
        d_out: TokenTensor `(b, h, i, dv)`.
        delta: `(b, h, i)`, of the dq kernel or the delta kernel.
        d_axis_weights: TokenTensor `(b, h, i, s)` with a grid's values.
        batch: sequences; `sum_batch` is that, or in how many parts to sum them, and `sum_heads`
            the query heads or 1.
        first: number of the first query, and `end` that after the last.
        HAS_I: whether each query has sums of its own, and `HAS_J` whether each key has.
        OF_MASK: whether they are of a mask, which is added after the cap.

    Writes:
        sums: `(sum_batch, sum_heads, end - first or 1, j or 1)` float32, contiguous.
    """
    args = KernelArgs(
        inputs, seqlen_q, seqlen_k, query_start, table_first, table_rows, min_offset,
        max_offset, num_tiles,
    )  # fmt: skip
    # Whole tiles of queries, as their ranges of keys are: those at both ends may have others too.
    first_tile = first // SPEC.block_m
    tiles_q = tl.cdiv(end, SPEC.block_m) - first_tile
    tiles_k = tl.cdiv(args.seqlen_k, SPEC.block_n)
    # How many tiles the sums have, and how many there are to sum for each of them.
    tiles_i, sum_i = (tiles_q, 1) if HAS_I else (1, tiles_q)
    tiles_j, sum_j = (tiles_k, 1) if HAS_J else (1, tiles_k)
    sum_b = tl.cdiv(batch, sum_batch)
    sum_h = args.inputs.heads // sum_heads
    num_score_rows = tl.cast(batch * args.inputs.heads, tl.int64) * args.seqlen_q
    tile = tl.program_id(0)
    tile_j = tile % tiles_j
    tile_i = tile // tiles_j % tiles_i
    own_h = tile // tiles_j // tiles_i % sum_heads
    own_b = tile // tiles_j // tiles_i // sum_heads
    acc = zeros(SPEC.block_m, SPEC.block_n)
    first_b = own_b * sum_b
    count_b = tl.maximum(tl.minimum(sum_b, batch - first_b), 0)
    for item in range(0, count_b * sum_h * sum_i * sum_j):
        j0 = (tile_j + item % sum_j) * SPEC.block_n
        i0 = (first_tile + tile_i + item // sum_j % sum_i) * SPEC.block_m
        h = own_h + item // sum_j // sum_i % sum_h
        b = first_b + item // sum_j // sum_i // sum_h
        g = h // args.inputs.heads_per_kv_head
        if has_pairs(args, b, i0, j0, j0 + SPEC.block_n, SPEC):
            i = i0 + tl.arange(0, SPEC.block_m)
            j = j0 + tl.arange(0, SPEC.block_n)
            q, q_rel = load_queries(args, b, h, i, SPEC)
            d_o = load_outputs(d_out, args, b, h, i, SPEC)
            k = load_keys(args, b, g, j, SPEC)
            v = load_values(args, b, g, j, SPEC)
            query_logits = load_query_logits(args, b, h, j, SPEC)
            query_marks = load_query_marks(args, i, SPEC)
            _, d_scores = recompute_d_scores(
                args, b, h, i0, j0, q, q_rel, k, v, d_o, d_out, softmax, delta, None,
                num_score_rows, d_axis_weights, load_key_marks(args, j, SPEC), query_logits,
                query_marks, ANY, OF_MASK, SPEC,
            )  # fmt: skip
            acc += d_scores
    i = (first_tile + tile_i) * SPEC.block_m + tl.arange(0, SPEC.block_m)
    j = tile_j * SPEC.block_n + tl.arange(0, SPEC.block_n)
    inside_i = (i >= first) & (i < end)
    inside_j = j < args.seqlen_k
    head = tl.cast(own_b * sum_heads + own_h, tl.int64)
    row = head * (end - first) + i - first
    if HAS_I and HAS_J:
        at = row[:, None] * args.seqlen_k + j[None, :]
        tl.store(sums + at, acc, mask=inside_i[:, None] & inside_j[None, :])
    elif HAS_I:
        tl.store(sums + row, tl.sum(acc, 1), mask=inside_i)
    elif HAS_J:
        tl.store(sums + head * args.seqlen_k + j, tl.sum(acc, 0), mask=inside_j)
    else:
        tl.store(sums + head, tl.sum(tl.sum(acc, 1), 0))
