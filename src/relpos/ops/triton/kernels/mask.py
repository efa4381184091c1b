"""Backward of an additive mask: `dS`, summed over the axes along which the mask is broadcast."""

import triton
import triton.language as tl

from ..call import SizedCall, Sizes
from .by_key import d_scores_of
from .scores import BAND
from .tiles import load_keys, load_rows, zeros


@triton.jit(do_not_specialize=Sizes._fields)
def mask_kernel(
    call, length, key_length, start, window_first, window_rows, all_tiles,
    softmax, d_out, delta, d_places, d_mask, batch, mask_batch, mask_heads,
    S: tl.constexpr,
):  # fmt: skip
    """Write `d_mask (b or 1, h or 1, i or 1, j or 1)`, contiguous, in float32."""
    call = SizedCall(call, length, key_length, start, window_first, window_rows, all_tiles)
    slab = call.given.slabs + tl.cast(tl.program_id(0), tl.int64) * S.slab
    all_i = tl.cdiv(call.length, S.m)
    all_j = tl.cdiv(call.key_length, S.n)
    # How many tiles the mask has, and how many there are to sum for each of them.
    tiles_i, sum_i = (all_i, 1) if S.mask_i else (1, all_i)
    tiles_j, sum_j = (all_j, 1) if S.mask_j else (1, all_j)
    sum_b = batch // mask_batch
    sum_h = call.given.heads // mask_heads
    all_rows = tl.cast(batch * call.given.heads, tl.int64) * call.length
    a = tl.arange(0, S.m)
    c = tl.arange(0, S.n)
    for tile in range(tl.program_id(0), call.tiles, tl.num_programs(0)):
        tile_j = tile % tiles_j
        tile_i = tile // tiles_j % tiles_i
        mask_h = tile // tiles_j // tiles_i % mask_heads
        mask_b = tile // tiles_j // tiles_i // mask_heads
        acc = zeros(S.m, S.n)
        for item in range(0, sum_b * sum_h * sum_i * sum_j):
            j0 = (tile_j + item % sum_j) * S.n
            i0 = (tile_i + item // sum_j % sum_i) * S.m
            h = mask_h + item // sum_j // sum_i % sum_h
            b = mask_b + item // sum_j // sum_i // sum_h
            g = h // call.given.repeat
            i = i0 + a
            j = j0 + c
            q = load_rows(call.given.q, b, h, i, call.length, S.d, S.block_d, S)
            p = q
            if S.own_p:
                p = load_rows(call.given.p, b, h, i, call.length, S.dp, S.block_p, S)
            d_o = load_rows(d_out, b, h, i, call.length, S.dv, S.block_v, S)
            k = load_keys(call.given.k, call, b, g, j, S.d, S.block_d, S)
            v = load_keys(call.given.v, call, b, g, j, S.dv, S.block_v, S)
            _, d_scores = d_scores_of(
                call, b, h, i0, j0, q, k, v, p, d_o, softmax, all_rows, delta, d_places, slab,
                BAND, S,
            )  # fmt: skip
            acc += d_scores
        i = tile_i * S.m + a
        j = tile_j * S.n + c
        head = tl.cast(mask_b * mask_heads + mask_h, tl.int64)
        if S.mask_i and S.mask_j:
            at = (head * call.length + i[:, None]) * call.key_length + j[None, :]
            inside = (i < call.length)[:, None] & (j < call.key_length)[None, :]
            tl.store(d_mask + at, acc, mask=inside)
        elif S.mask_i:
            tl.store(d_mask + head * call.length + i, tl.sum(acc, 1), mask=i < call.length)
        elif S.mask_j:
            at = head * call.key_length + j
            tl.store(d_mask + at, tl.sum(acc, 0), mask=j < call.key_length)
        else:
            tl.store(d_mask + head, tl.sum(tl.sum(acc, 1), 0))
