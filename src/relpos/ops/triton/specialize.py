"""What a kernel is compiled for, from a call and the tiles it is to run with."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from .kernel_args import Specialization
from .prepared_call import BIAS_MARGIN, PreparedCall
from .tuning import TileShape, next_power_of_two

__all__ = ["specialize"]

_INT32 = 1 << 31
_WARP = 32  # threads


def specialize(
    call: PreparedCall,
    shape: TileShape,
    *,
    axis_weights: bool,
    besides: Iterable[Tensor | None] = (),
) -> Specialization:
    """What a kernel with tiles of some shape is compiled for.

    Args:
        call: whose tensors the kernel gets.
        shape: of a tile.
        axis_weights: whether weights are summed by coordinate of the key.
        besides: tensors `(b, h, tokens, width)` of the kernel that are not the call's.
    """
    mask, grid, tables = call.mask, call.grid, call.expanded_tables
    head_dim, rel_dim, value_dim = call.widths
    key_coordinates = 0 if grid is None else sum(grid.key_grid)
    query_coordinates = 0 if grid is None else sum(grid.query_grid)
    indices = call.grid_indices
    has_axis_windows = indices is not None and indices.coordinate_windows is not None
    by_rows = call.row_tile_width == shape.n
    shear_width = min(shape.n, _WARP)
    assert shape.n <= shape.m, shape
    assert shape.m % shear_width == 0, shape
    assert shape.n <= 2 * shear_width or not tables.keys() - {"bias"}, shape
    assert shape.m + shape.n <= BIAS_MARGIN, shape
    return Specialization(
        block_m=shape.m,
        block_n=shape.n,
        shear_width=shear_width,
        head_dim=head_dim,
        rel_dim=rel_dim,
        value_dim=value_dim,
        block_head_dim=_block(head_dim),
        block_rel_dim=_block(rel_dim),
        block_value_dim=_block(value_dim),
        has_keys="keys" in tables,
        has_queries="queries" in tables,
        has_bias="bias" in tables,
        bias_margin=BIAS_MARGIN,
        bias_over_scale=call.bias_over_scale,
        has_values="values" in tables,
        has_q_rel=call.q_rel is not None,
        is_causal=call.causal,
        left_sees_ahead=call.causal and call.table_first > 0,
        ragged_keys=_ragged_keys(call, shape, by_rows),
        mask_kind=_mask_kind(mask),
        mask_has_i=mask is not None and mask.shape[2] > 1,
        mask_has_j=mask is not None and mask.shape[3] > 1,
        has_documents=call.documents is not None,
        has_key_ranges=call.key_ranges is not None,
        has_axis_windows=has_axis_windows,
        has_tile_ranges=has_axis_windows or bool(call.documents is not None or call.key_ranges),
        has_min_offset=call.min_offset is not None,
        has_max_offset=call.max_offset is not None,
        has_softcap=call.softcap > 0,
        scale_last=call.scales_last or by_rows,
        in_bits=call.scales_last or call.row_tile_width is not None,
        has_dropout=call.dropout > 0,
        num_axes=0 if grid is None else len(grid.key_grid),
        num_key_coordinates=key_coordinates,
        num_query_coordinates=query_coordinates,
        block_key_coordinates=_block(key_coordinates),
        block_query_coordinates=_block(query_coordinates),
        grid_by_rows=by_rows,
        axis_width=0 if grid is None else grid.key_grid[-1],
        has_key_axis_logits=call.key_axis_logits is not None,
        has_query_axis_logits=call.query_axis_logits is not None,
        has_joint_bias=call.joint_bias is not None,
        has_axis_weights=axis_weights,
        int64_offsets=_needs_int64(call, besides),
        precision=_precision(),
    )


def _ragged_keys(call: PreparedCall, shape: TileShape, by_rows: bool) -> bool:
    if call.grid is not None and by_rows:
        return call.grid.key_grid[-1] != shape.n or call.grid.prefix % shape.n != 0
    return call.seqlen_k % shape.n != 0


def _needs_int64(call: PreparedCall, besides: Iterable[Tensor | None]) -> bool:
    own = (call.q, call.k, call.v, call.q_rel, call.key_axis_logits, call.query_axis_logits)
    return any(
        x.shape[2] * max(abs(x.stride(2)), x.shape[3]) >= _INT32
        for x in (*own, *besides)
        if x is not None and x.ndim == 4
    )


def _mask_kind(mask: Tensor | None) -> str:
    if mask is None:
        return "none"
    return "boolean" if mask.dtype == torch.bool else "additive"


def _precision() -> str:
    """How float32 matrix products are to be made, as torch's own setting says."""
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"


def _block(width: int) -> int:
    return next_power_of_two(max(width, 16))
