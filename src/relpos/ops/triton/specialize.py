"""What a kernel is compiled for, from a call and the tiles it is to run with."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from .kernel_args import BIAS_MARGIN, Specialization
from .prepared_call import PreparedCall
from .tensor_args import any_needs_int64
from .tuning import TileShape, next_power_of_two

__all__ = ["specialize"]


def specialize(
    call: PreparedCall, shape: TileShape, besides: Iterable[Tensor | None] = ()
) -> Specialization:
    """What a kernel with tiles of some shape is compiled for.

    Args:
        call: whose tensors the kernel gets.
        shape: of a tile.
        besides: tensors `(b, h, tokens, width)` of the kernel that are not the call's.
    """
    int64_offsets = call.plan.needs_int64 or any_needs_int64(besides)
    kept, key = call.plan.specializations, (shape, int64_offsets)
    found = kept.get(key)
    if found is None:
        found = kept[key] = _specialization(call, *key)
    return found


def _specialization(call: PreparedCall, shape: TileShape, int64_offsets: bool) -> Specialization:
    traits = call.traits
    grid, tables, mask = traits.grid, traits.tables, traits.mask
    head_dim, rel_dim, value_dim = traits.widths
    key_coordinates = 0 if grid is None else sum(grid.key_grid)
    query_coordinates = 0 if grid is None else sum(grid.query_grid)
    by_rows = traits.row_tile_width == shape.n
    assert shape.m % shape.n == 0, shape
    assert shape.n % 8 == 0, shape
    assert shape.m + shape.n <= BIAS_MARGIN, shape
    return Specialization(
        block_m=shape.m,
        block_n=shape.n,
        head_dim=head_dim,
        rel_dim=rel_dim,
        value_dim=value_dim,
        block_head_dim=_block(head_dim),
        block_rel_dim=_block(rel_dim),
        block_value_dim=_block(value_dim),
        has_keys="keys" in tables,
        has_queries="queries" in tables,
        has_bias="bias" in tables,
        bias_over_scale=traits.bias_over_scale,
        has_values="values" in tables,
        has_q_rel=traits.has_q_rel,
        is_causal=traits.is_causal,
        has_narrow_band=traits.has_narrow_band,
        left_sees_ahead=traits.left_sees_ahead,
        ragged_keys=_has_ragged_keys(call, shape),
        mask_kind=mask.kind,
        mask_has_i=mask.has_i,
        mask_has_j=mask.has_j,
        has_documents=traits.has_documents,
        has_key_ranges=traits.has_key_ranges,
        has_axis_windows=traits.has_axis_windows,
        has_tile_ranges=(traits.has_documents or traits.has_key_ranges or traits.has_axis_windows),
        has_min_offset=traits.has_min_offset,
        has_max_offset=traits.has_max_offset,
        has_softcap=traits.has_softcap,
        scale_last=traits.scales_last or by_rows,
        in_bits=traits.scales_last or traits.row_tile_width is not None,
        has_dropout=traits.has_dropout,
        has_dropout_origin=traits.has_dropout_origin,
        num_axes=0 if grid is None else len(grid.key_grid),
        num_key_coordinates=key_coordinates,
        num_query_coordinates=query_coordinates,
        block_key_coordinates=_block(key_coordinates),
        block_query_coordinates=_block(query_coordinates),
        grid_by_rows=by_rows,
        axis_width=0 if grid is None else grid.key_grid[-1],
        axes_by_product=not by_rows and traits.multiplies_axes,
        has_key_axis_logits=traits.has_key_axis_logits,
        has_query_axis_logits=traits.has_query_axis_logits,
        has_joint_bias=traits.has_joint_bias,
        has_axis_weights=traits.has_axis_weights,
        int64_offsets=int64_offsets,
        precision=call.precision,
    )


def _has_ragged_keys(call: PreparedCall, shape: TileShape) -> bool:
    grid = call.grid
    if grid is not None and call.traits.row_tile_width == shape.n:
        return grid.key_grid[-1] != shape.n or grid.prefix % shape.n != 0
    return call.seqlen_k % shape.n != 0


def _block(width: int) -> int:
    return next_power_of_two(max(width, 16))
