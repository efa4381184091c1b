"""`dS` of pairs, summed over the sequences and heads that share what was added to their scores."""

from __future__ import annotations

import torch
from torch import Tensor

from .kernels.backward_pairs import dpairs_kernel
from .launch import run_largest_that_fits, run_tiles
from .prepared_call import PreparedCall
from .saved import Saved
from .tensor_args import maybe_token_tensor, token_tensor
from .tuning import TileShape, count_tiles, split_count

__all__ = ["pair_sums"]


def pair_sums(
    call: PreparedCall,
    saved: Saved,
    delta: Tensor,
    *,
    batch: int,
    heads: int,
    by_query: bool = True,
    by_key: bool = True,
    of_mask: bool = False,
    queries: range | None = None,
) -> Tensor:
    """`(batch, heads, queries or 1, j or 1)` in float32.

    Args:
        call: of the forward pass.
        saved: of the forward pass.
        delta: `(b, h, i)`, of the dq kernel.
        batch: 1, to sum over the sequences, or their number.
        heads: 1, to sum over the query heads, or their number.
        by_query: whether each query has sums of its own.
        by_key: whether each key has.
        of_mask: whether they are of a mask, which is added after the cap.
        queries: those that count, one after another; None: all.
    """
    assert by_query or queries is None  # tiles are summed whole
    queries = range(call.seqlen_q) if queries is None else queries
    first, end = queries.start, queries.stop
    sums = call.q.new_empty(0)

    def run(shape: TileShape) -> None:
        nonlocal sums
        tiles_i = count_tiles(end, shape.m) - first // shape.m if by_query else 1
        tiles_j = count_tiles(call.seqlen_k, shape.n) if by_key else 1
        num_tiles = heads * tiles_i * tiles_j
        # Of sequences that share a sum.
        splits = split_count(num_tiles, call.batch, call.q.device) if batch == 1 else batch
        size = splits, heads, len(queries) if by_query else 1, call.seqlen_k if by_key else 1
        sums = call.q.new_empty(size, dtype=torch.float32)
        run_tiles(
            dpairs_kernel, call, splits * num_tiles, saved.softmax, token_tensor(saved.d_out),
            delta, maybe_token_tensor(saved.d_axis_weights), sums, call.batch, splits, heads,
            first, end, shape=shape, spec=saved.specialization(call, shape), known=saved.known,
            HAS_I=by_query, HAS_J=by_key, OF_MASK=of_mask,
        )  # fmt: skip

    run_largest_that_fits("dpairs", call, run)
    return sums if sums.shape[0] == batch else sums.sum(0, keepdim=True)
