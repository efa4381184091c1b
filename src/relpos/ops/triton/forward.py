"""The forward pass of one call: its outputs, and one kernel, or two where keys are split."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..result_layout import empty_as
from . import launch
from .kernels.forward import forward_kernel, merge_kernel
from .launch import run_largest_that_fits, run_tiles
from .prepared_call import PreparedCall
from .specialize import specialize
from .tensor_args import maybe_token_tensor, token_tensor
from .tuning import TileShape, count_tiles, split_count

__all__ = ["ForwardResult", "forward"]

_TILES_OF_A_SPLIT = 4  # of keys, or more
_MERGED_ROWS = 16  # of a program


class ForwardResult(NamedTuple):
    """What the forward pass returns.

    Args:
        out: `(b, h, i, dv)`, in q's dtype; in float32 with `axis_weights`.
        lse: `(b, h, i)` float32, in nats.
        softmax: `(2, b, h, i)` float32: `row_max` and `inverse_sum` of `kernels/structs.py`.
        axis_weights: `(b, h, i, s)` float32: the weights summed by coordinate of the key, axis
            after axis of a grid; `(0,)` unless needed.
        rounded_off: `(b, h, i, dv)` in q's dtype: what rounding took off `out` (`rounded_off.py`);
            `(0,)` in float32, or where nobody reads it.
    """

    out: Tensor
    lse: Tensor
    softmax: Tensor
    axis_weights: Tensor
    rounded_off: Tensor


def forward(call: PreparedCall, *, keep_rounded_off: bool = True) -> ForwardResult:
    """Attention of one call; `rounded_off` is made where it is to be kept."""
    q, need_axis_weights = call.q, call.traits.has_axis_weights
    rows, float32 = tuple(q.shape[:3]), torch.float32
    out_dtype = float32 if need_axis_weights else q.dtype
    out = empty_as(q, (*rows, call.v.shape[3]), out_dtype)
    lse = q.new_empty(rows, dtype=float32)
    softmax = q.new_empty((2, *rows), dtype=float32)
    columns = sum(call.grid.key_grid) if call.grid is not None and need_axis_weights else 0
    axis_weights = q.new_empty((*rows, columns) if columns else (0,), dtype=float32)
    rounded_off = None
    if keep_rounded_off and out_dtype != float32:
        rounded_off = empty_as(q, out.shape)
    keeps = rounded_off is not None
    lost = q.new_empty(0) if rounded_off is None else rounded_off
    if call.is_empty:
        lse.fill_(-torch.inf)
        for x in (out, softmax, axis_weights, lost):
            x.zero_()
        return ForwardResult(out, lse, softmax, axis_weights, lost)

    def run(shape: TileShape) -> None:
        spec = specialize(call, shape, (out, axis_weights))
        num_tiles = call.batch * call.heads * count_tiles(call.seqlen_q, shape.m)
        splits = 1 if call.grid is not None else _count_splits(call, num_tiles, shape)
        parts = part_sums = None
        if splits > 1:
            parts = q.new_empty((splits * rows[0], *rows[1:], call.v.shape[3]), dtype=float32)
            part_sums = q.new_empty((2, splits, *rows), dtype=float32)
        run_tiles(
            forward_kernel, call, num_tiles, token_tensor(out), lse, softmax,
            token_tensor(axis_weights) if need_axis_weights else None,
            maybe_token_tensor(rounded_off), maybe_token_tensor(parts), part_sums, splits,
            shape=shape, spec=spec, splits=splits, known=keeps, SPLIT=splits > 1,
        )  # fmt: skip
        if parts is not None:
            merged = TileShape(_MERGED_ROWS, 1, 4, 1)
            launch.run_programs(
                merge_kernel, count_tiles(lse.numel(), merged.m), parts, part_sums,
                token_tensor(out), rounded_off, lse, softmax, lse.numel(),
                *rows[1:], splits, call.plan.keep_scale, shape=merged, M=merged.m, SPEC=spec,
                known=(call.plan.known, keeps),
            )  # fmt: skip

    run_largest_that_fits("forward", call, run)
    return ForwardResult(out, lse, softmax, axis_weights, lost)


def _count_splits(call: PreparedCall, num_tiles: int, shape: TileShape) -> int:
    """Into how many parts the keys are split, where tiles of queries are few: as in decoding."""
    items = count_tiles(call.keys_of_a_tile(shape.m), _TILES_OF_A_SPLIT * shape.n)
    return split_count(num_tiles, items, call.q.device)
