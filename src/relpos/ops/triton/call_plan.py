"""What follows from a call's settings and from how its tensors lie: found once, and kept."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from ...terms import OffsetTable
from ..bounded_cache import BoundedCache
from ..layouts import layouts_of, number_of
from ..locality import Window
from .call_traits import CallTraits, GridShape, MaskTraits
from .kernel_args import Specialization
from .table_window import TableWindow, shared_table_window
from .tensor_args import any_needs_int64
from .tuning import (
    NARROW,
    TileShape,
    capability_of,
    next_power_of_two,
    widest_of_three_products,
)

__all__ = ["CallPlan", "CallSettings", "matmul_precision", "scales_last"]

Tensors = Mapping[str, Tensor | None]
Tables = Mapping[str, OffsetTable]

_FAR = 1 << 29  # in tokens; no sequence is as long
_SMALLEST_DIVISOR = 2.0**-20
# Keys along the last axis of a grid whose rows are tiles. Below, products with marks took no longer
# on an H200, forward and backward together.
_NARROWEST_ROW, _WIDEST_ROW = 33, 64


class CallSettings(NamedTuple):
    """The settings of a call, besides its tensors.

    Args:
        grid: of the tokens; None for a sequence.
        causal: whether keys ahead of the query are left out.
        scale: of the scores.
        query_start: position of the first query, in tokens.
        dropout: probability.
        precision: of float32 matrix products, as `matmul_precision` has it.
        window: `(left, right)` of each axis, of which a sequence has one; empty without.
        softcap: c of `c tanh(s / c)`; 0 without one.
        need_axis_weights: whether weights are summed by coordinate of the key.
        is_part: whether dropout is that of a larger call, in which this one lies.
    """

    grid: GridShape | None
    causal: bool
    scale: float
    query_start: int
    dropout: float
    precision: str
    window: tuple[Window, ...] = ()
    softcap: float = 0.0
    need_axis_weights: bool = False
    is_part: bool = False

    @property
    def bias_over_scale(self) -> bool:
        """Whether the scale is one that a number in float32 can be multiplied and divided by."""
        return _SMALLEST_DIVISOR <= abs(self.scale) <= 1 / _SMALLEST_DIVISOR


@dataclass(frozen=True)
class CallPlan:
    """The same for all calls of the same settings whose tensors lie alike.

    Args:
        traits: for what its kernels are compiled.
        table_window: of the tables.
        table_first: offset of the window's first row, from queries that begin at `query_start`.
        query_start: position of the first query. However far off the queries are, it fits in 32
            bits: only offsets count.
        min_offset: the least offset at which a pair takes part; None without a limit.
        max_offset: the largest one; None without a limit.
        dropout_threshold: a weight is dropped where a draw of 32 bits is below it.
        keep_scale: 1 over the probability that dropout keeps a weight.
        precision: of float32 matrix products, as in `Specialization`.
        needs_int64: whether places in the tensors of tokens are numbers beyond 31 bits.
        known: of what kernels may be compiled for, besides their specialization: see `launch`.
        specializations: what kernels are compiled for, as far as it was asked for, by what else
            decides it (`specialize.py`).
    """

    traits: CallTraits
    table_window: TableWindow
    table_first: int
    query_start: int
    min_offset: int | None
    max_offset: int | None
    dropout_threshold: int
    keep_scale: float
    precision: str
    needs_int64: bool
    known: int
    specializations: dict[tuple[TileShape, bool], Specialization] = field(
        default_factory=dict, compare=False
    )

    @classmethod
    def of(cls, tensors: Tensors, tables: Tables, settings: CallSettings) -> CallPlan:
        """The plan of a call.

        Args:
            tensors: by name, or None: as `PreparedCall` has them.
            tables: by name: those that there are.
            settings: of the call.
        """
        layouts = layouts_of((*tensors.values(), *(table.rows for table in tables.values())))
        places = tuple((name, table.first, table.beyond) for name, table in tables.items())
        key = layouts, places, settings
        return _plans.get_or_make(key, lambda: cls._make(tensors, tables, settings, layouts))

    @classmethod
    def _make(
        cls, tensors: Tensors, tables: Tables, settings: CallSettings, layouts: Hashable
    ) -> CallPlan:
        q, k, grid = tensors["q"], tensors["k"], settings.grid
        assert q is not None
        assert k is not None
        seqlen_q, seqlen_k, first_query = q.shape[2], k.shape[2], settings.query_start
        left, right = settings.window[0] if settings.window and grid is None else (None, None)
        table_window = shared_table_window(
            tables.values(), first_query, seqlen_q, seqlen_k,
            causal=settings.causal and grid is None, window=(left, right),
        ) or TableWindow(0, 1)  # fmt: skip
        query_start = min(max(first_query, -seqlen_q), seqlen_k)
        moved = first_query - query_start
        table_first = _within_32_bits(table_window.first + moved)
        min_offset = None if left is None else _within_32_bits(moved - left)
        max_offset = None if right is None else _within_32_bits(moved + right)
        threshold = min(round(settings.dropout * (1 << 32)), (1 << 32) - 1)
        of_tokens = ("q", "k", "v", "q_rel", "key_axis_logits", "query_axis_logits")
        traits = _traits(
            tensors, tables, settings, table_window,
            left_sees_ahead=settings.causal and table_first > 0,
            has_min_offset=left is not None, has_max_offset=right is not None,
        )  # fmt: skip
        return cls(
            traits=traits,
            table_window=table_window,
            table_first=table_first,
            query_start=query_start,
            min_offset=min_offset,
            max_offset=max_offset,
            dropout_threshold=threshold,
            precision=_precision(settings.precision, traits.widths, q.device),
            keep_scale=1 / (1 - threshold / (1 << 32)),
            needs_int64=any_needs_int64(tensors[name] for name in of_tokens),
            known=number_of((
                layouts, grid, settings.window if grid is not None else None,
                # Where a table's rows lie among those of the window, and so how these do.
                table_window.num_rows,
                *((table.first - table_window.first, table.beyond) for table in tables.values()),
                # Of numbers, Triton wants to know which are there, and in how many bits.
                threshold, min_offset is None, max_offset is None,
                *(-(2**31) <= x < 2**31 for x in (seqlen_q, seqlen_k, query_start, table_first)),
            )),
        )  # fmt: skip


_plans: BoundedCache[CallPlan] = BoundedCache()


def matmul_precision() -> str:
    """How float32 matrix products are to be made, as torch's own setting says: "tf32" or "ieee"."""
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"


def _precision(wanted: str, widths: tuple[int, ...], device: torch.device) -> str:
    """How a call's are made, as `Specialization.precision` has it.

    Those that are to be as near as "ieee" are made in three of TF32, of numbers split in two, as
    torch's memory-efficient SDPA makes them: with errors of the same size, in a fourth of the time
    on an H200. Of wide heads they take more registers than there are.
    """
    fits = max(widths) <= widest_of_three_products(capability_of(device))
    return "tf32x3" if wanted == "ieee" and fits else wanted


def _traits(
    tensors: Tensors,
    tables: Tables,
    settings: CallSettings,
    table_window: TableWindow,
    *,
    left_sees_ahead: bool,
    has_min_offset: bool,
    has_max_offset: bool,
) -> CallTraits:
    q, v, q_rel = tensors["q"], tensors["v"], tensors["q_rel"]
    assert q is not None
    assert v is not None
    mask = MaskTraits.of(tensors["mask"])
    return CallTraits(
        widths=(q.shape[3], q.shape[3] if q_rel is None else q_rel.shape[3], v.shape[3]),
        tables=tuple(tables),
        grid=settings.grid,
        mask=mask,
        row_tile_width=_row_tile_width(tensors, settings, mask),
        scales_last=scales_last(settings, mask),
        bias_over_scale=settings.bias_over_scale,
        has_q_rel=q_rel is not None,
        is_causal=settings.causal,
        has_narrow_band=bool(tables) and table_window.num_rows <= NARROW,
        left_sees_ahead=left_sees_ahead,
        has_documents=tensors["documents"] is not None,
        has_key_ranges=tensors["key_ranges"] is not None,
        has_axis_windows=(
            settings.grid is not None
            and (bool(settings.window) or tensors["axis_ranges"] is not None)
        ),
        has_min_offset=has_min_offset,
        has_max_offset=has_max_offset,
        has_softcap=settings.softcap > 0,
        has_dropout=settings.dropout > 0,
        has_dropout_origin=settings.is_part,
        has_key_axis_logits=tensors["key_axis_logits"] is not None,
        has_query_axis_logits=tensors["query_axis_logits"] is not None,
        has_joint_bias=tensors["joint_bias"] is not None,
        has_axis_weights=settings.need_axis_weights,
    )


def _row_tile_width(tensors: Tensors, settings: CallSettings, mask: MaskTraits) -> int | None:
    """Places of a tile that is one row of the grid, where kernels can take such tiles; or None.

    They can if the scores depend on the grid by key logits along two axes alone, as the values do
    not, and if nothing else is added to the products or leaves out tiles.
    """
    grid = settings.grid
    if grid is None or len(grid.key_grid) != 2 or tensors["key_axis_logits"] is None:
        return None
    if settings.causal or settings.window or settings.need_axis_weights:
        return None
    names = ("documents", "key_ranges", "axis_ranges", "query_axis_logits", "joint_bias")
    if any(tensors[name] is not None for name in names) or mask.kind == "additive":
        return None
    if settings.softcap or not settings.bias_over_scale or settings.scale < 0:
        return None
    width = grid.key_grid[-1]
    return next_power_of_two(width) if _NARROWEST_ROW <= width <= _WIDEST_ROW else None


def scales_last(settings: CallSettings, mask: MaskTraits) -> bool:
    """Whether scores can stay unscaled: only a bias is added in logits, and nothing caps them."""
    adds_logits = settings.grid is not None or mask.kind == "additive"
    return settings.bias_over_scale and settings.scale > 0 and not (adds_logits or settings.softcap)


def _within_32_bits(offset: int) -> int:
    """An offset on the same side of all pairs, far from where numbers of 32 bits end."""
    return min(max(offset, -_FAR), _FAR)
