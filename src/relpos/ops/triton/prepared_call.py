"""One call, laid out for the kernels: shared by forward and backward."""

from __future__ import annotations

from functools import cached_property, reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...terms import OffsetTable
from ..inputs import DropoutOrigin
from ..locality import Window
from .call_traits import CallTraits, GridShape, MaskTraits
from .grid_indices import grid_indices
from .kernel_args import BIAS_MARGIN, KernelInputs, KernelSizes, Specialization, TokenTensor
from .key_ranges import KeyRanges
from .layouts import number_of_layouts
from .table_window import TableWindow, shared_table_window
from .tensor_args import (
    any_needs_int64,
    maybe_token_tensor,
    pair_tensor,
    table_tensor,
    token_tensor,
    with_dense_rows,
)
from .tile_ranges import TileRanges, intersect, tiles_of_documents, tiles_of_key_ranges
from .tuning import NARROW, count_tiles, next_power_of_two

__all__ = ["PreparedCall"]

_FAR = 1 << 29  # in tokens; no sequence is as long
_SMALLEST_DIVISOR = 2.0**-20
# Keys along the last axis of a grid whose rows are tiles.
_NARROWEST_ROW, _WIDEST_ROW = 9, 64


class PreparedCall:
    """The tensors of a call as the kernels take them.

    Args:
        tensors: by name, or None: `q k v q_rel mask key_axis_logits query_axis_logits joint_bias
            documents query_documents key_ranges seed`.
        tables: by name: `keys queries bias values`, those that there are.
        grid: of the tokens; None for a sequence.
        causal: whether keys ahead of the query are left out.
        scale: of the scores.
        query_start: position of the first query, in tokens.
        dropout: probability.
        window: `(left, right)` of each axis, of which a sequence has one; empty without.
        softcap: c of `c tanh(s / c)`; 0 without one.
        dropout_origin: of this call in a larger one, None for a whole one.
    """

    def __init__(
        self,
        tensors: dict[str, Tensor | None],
        tables: dict[str, OffsetTable],
        grid: GridShape | None,
        *,
        causal: bool,
        scale: float,
        query_start: int,
        dropout: float,
        window: tuple[Window, ...] = (),
        softcap: float = 0.0,
        dropout_origin: DropoutOrigin | None = None,
    ) -> None:
        q, k, v, q_rel = (with_dense_rows(tensors[name]) for name in ("q", "k", "v", "q_rel"))
        assert q is not None
        assert k is not None
        assert v is not None
        self.q, self.k, self.v, self.q_rel = q, k, v, q_rel
        self.mask, self.documents = tensors["mask"], tensors["documents"]
        self.query_documents = tensors["query_documents"]
        if self.documents is not None:
            self.documents = self.documents.long().contiguous()
            if self.query_documents is None:
                of_queries = slice(query_start, query_start + q.shape[2])
                self.query_documents = self.documents[:, of_queries]
            self.query_documents = self.query_documents.long().contiguous()
        self.key_axis_logits, self.query_axis_logits = (
            tensors["key_axis_logits"],
            tensors["query_axis_logits"],
        )
        self.joint_bias, self.seed = tensors["joint_bias"], tensors["seed"]
        self.tables = tables
        self.batch, self.heads, self.seqlen_q, _ = q.shape
        self.kv_heads, self.seqlen_k = k.shape[1], k.shape[2]
        self.causal, self.dropout, self.softcap = causal, dropout, softcap
        self.scale = float(scale)
        self.dropout_origin = None
        if dropout and dropout_origin is not None:
            # A tensor, since Triton compiles anew for numbers.
            self.dropout_origin = torch.tensor(dropout_origin, device=q.device)
        self.grid = grid
        window_of_line = window[0] if window and grid is None else (None, None)
        self.table_window = shared_table_window(
            tables.values(), query_start, self.seqlen_q, self.seqlen_k,
            causal=causal and grid is None, window=window_of_line,
        ) or TableWindow(0, 1)  # fmt: skip
        self.bias_over_scale = _SMALLEST_DIVISOR <= abs(scale) <= 1 / _SMALLEST_DIVISOR
        # Each `(h or 1, num_rows[, d])`; the bias as kernels take it.
        self.expanded_tables = {
            name: self._expand_bias(table) if name == "bias" else self.table_window.expand(table)
            for name, table in tables.items()
        }
        # However far off the queries are, positions fit in 32 bits: only offsets count.
        self.query_start = min(max(query_start, -self.seqlen_q), self.seqlen_k)
        moved = query_start - self.query_start
        self.table_first = _within_32_bits(self.table_window.first + moved)
        left, right = window_of_line
        self.min_offset = None if left is None else _within_32_bits(moved - left)
        self.max_offset = None if right is None else _within_32_bits(moved + right)
        self.key_ranges = None
        if (key_ranges := tensors["key_ranges"]) is not None:
            self.key_ranges = KeyRanges.of(key_ranges, self.batch, self.seqlen_k)
        self.grid_indices = None
        if grid is not None:
            self.grid_indices = grid_indices(
                grid.key_grid, grid.query_grid, grid.prefix, tuple(window), q.device
            )
        #: For what its kernels are compiled.
        self.traits = self._traits()

    @property
    def is_empty(self) -> bool:
        """Whether there is no pair at all."""
        return 0 in (self.batch, self.seqlen_q, self.seqlen_k)

    def _traits(self) -> CallTraits:
        indices = self.grid_indices
        windows = indices is not None and indices.coordinate_windows is not None
        mask = MaskTraits.of(self.mask)
        return CallTraits(
            widths=self.widths,
            tables=tuple(self.tables),
            grid=self.grid,
            mask=mask,
            row_tile_width=self._row_tile_width(mask, windows),
            scales_last=self._scales_last(mask),
            bias_over_scale=self.bias_over_scale,
            has_q_rel=self.q_rel is not None,
            is_causal=self.causal,
            has_narrow_band=bool(self.tables) and self.table_window.num_rows <= NARROW,
            left_sees_ahead=self.causal and self.table_first > 0,
            has_documents=self.documents is not None,
            has_key_ranges=self.key_ranges is not None,
            has_axis_windows=windows,
            has_min_offset=self.min_offset is not None,
            has_max_offset=self.max_offset is not None,
            has_softcap=self.softcap > 0,
            has_dropout=self.dropout > 0,
            has_dropout_origin=self.dropout_origin is not None,
            has_key_axis_logits=self.key_axis_logits is not None,
            has_query_axis_logits=self.query_axis_logits is not None,
            has_joint_bias=self.joint_bias is not None,
        )

    def _row_tile_width(self, mask: MaskTraits, windows: bool) -> int | None:
        """Places of a tile that is one row of the grid, where kernels can take such tiles; or None.

        They can if the scores depend on the grid by key logits along two axes alone, and if nothing
        else is added to the products or leaves out tiles.
        """
        grid = self.grid
        if grid is None or len(grid.key_grid) != 2 or self.key_axis_logits is None:
            return None
        if self.causal or windows or not (self.documents is self.key_ranges is None):
            return None
        adds = not (self.query_axis_logits is self.joint_bias is None) or mask.kind == "additive"
        if adds or self.softcap or not self.bias_over_scale or self.scale < 0:
            return None
        width = grid.key_grid[-1]
        return next_power_of_two(width) if _NARROWEST_ROW <= width <= _WIDEST_ROW else None

    def _scales_last(self, mask: MaskTraits) -> bool:
        """Whether scores can stay unscaled: only a bias is added in logits, and nothing caps them.

        The scale has to be one that a number in float32 can be multiplied with and divided by.
        """
        adds_logits = self.grid is not None or mask.kind == "additive"
        return self.bias_over_scale and self.scale > 0 and not (adds_logits or self.softcap)

    @cached_property
    def needs_int64(self) -> bool:
        """Whether places in the tensors of tokens are numbers beyond 31 bits."""
        return any_needs_int64(
            (self.q, self.k, self.v, self.q_rel, self.key_axis_logits, self.query_axis_logits)
        )

    @property
    def _dropout_threshold(self) -> int:
        return min(round(self.dropout * (1 << 32)), (1 << 32) - 1)

    @property
    def keep_scale(self) -> float:
        """1 over the probability that dropout keeps a weight."""
        return 1 / (1 - self._dropout_threshold / (1 << 32))

    @property
    def rel_queries(self) -> Tensor:
        """What is dotted with the table of keys: `q_rel`, or `q`."""
        return self.q if self.q_rel is None else self.q_rel

    @property
    def widths(self) -> tuple[int, int, int]:
        """Of `q`, `rel_queries` and `v`."""
        return self.q.shape[3], self.rel_queries.shape[3], self.v.shape[3]

    @cached_property
    def known(self) -> tuple[int | bool | None, ...]:
        """Of what kernels may be compiled for, besides their specialization: see `launch`."""
        tensors = [
            self.q, self.k, self.v, self.q_rel, self.mask, self.documents, self.query_documents,
            self.key_axis_logits, self.query_axis_logits, self.joint_bias, self.seed,
            *self.expanded_tables.values(),
        ]  # fmt: skip
        if self.grid_indices is not None:
            tensors += [x for x in vars(self.grid_indices).values() if isinstance(x, Tensor)]
        number = number_of_layouts(tensors)
        numbers = (self.seqlen_q, self.seqlen_k, self.query_start, self.table_first)
        # Of numbers, Triton wants to know which are there, and in how many bits.
        return number, self._dropout_threshold, self.min_offset is None, self.max_offset is None, *(
            -(2**31) <= x < 2**31 for x in numbers
        )  # fmt: skip

    def kernel_args(self, specialization: Specialization, num_tiles: int) -> tuple[Any, ...]:
        """`KernelInputs` and `KernelSizes` of a kernel of `num_tiles` tiles."""
        inputs = self._kernel_inputs
        ranges = self._tile_ranges(specialization.block_m, specialization.block_n)
        if ranges is not None:
            inputs = inputs._replace(tile_key_ranges=ranges[0], tile_query_ranges=ranges[1])
        return inputs, *KernelSizes(
            seqlen_q=self.seqlen_q,
            seqlen_k=self.seqlen_k,
            query_start=self.query_start,
            table_first=self.table_first,
            table_rows=self.table_window.num_rows,
            min_offset=self.min_offset,
            max_offset=self.max_offset,
            num_tiles=num_tiles,
        )

    @cached_property
    def _kernel_inputs(self) -> KernelInputs:
        """Without what depends on the tile."""
        indices = self.grid_indices
        table_of = self.expanded_tables.get
        return KernelInputs(
            q=token_tensor(self.q),
            k=token_tensor(self.k),
            v=token_tensor(self.v),
            q_rel=maybe_token_tensor(self.q_rel),
            keys_table=table_tensor(table_of("keys")),
            queries_table=table_tensor(table_of("queries")),
            bias_table=table_tensor(table_of("bias")),
            values_table=table_tensor(table_of("values")),
            mask=pair_tensor(self.mask),
            documents=_documents(self.documents),
            query_documents=_documents(self.query_documents),
            key_ranges=None if self.key_ranges is None else self.key_ranges.of_queries,
            keys_in_ranges=None if self.key_ranges is None else self.key_ranges.keys_in_any,
            tile_key_ranges=None,
            tile_query_ranges=None,
            key_axis_logits=maybe_token_tensor(with_dense_rows(self.key_axis_logits)),
            query_axis_logits=maybe_token_tensor(with_dense_rows(self.query_axis_logits)),
            joint_bias=table_tensor(self.joint_bias),
            key_coordinates=None if indices is None else indices.key_coordinates,
            query_coordinates=None if indices is None else indices.query_coordinates,
            key_joint_index=None if indices is None else indices.key_joint_index,
            query_joint_index=None if indices is None else indices.query_joint_index,
            coordinate_windows=None if indices is None else indices.coordinate_windows,
            seed=self.seed,
            heads=self.heads,
            heads_per_kv_head=self.heads // self.kv_heads,
            scale=self.scale,
            softcap=self.softcap or None,
            dropout_threshold=self._dropout_threshold,
            keep_scale=self.keep_scale,
            dropout_origin=self.dropout_origin,
        )

    def keys_of_a_tile(self, queries: int) -> int:
        """How many keys so many queries see at most, by the window."""
        if self.min_offset is None:
            return self.seqlen_k
        last = self.max_offset if self.max_offset is not None else None if not self.causal else 0
        if last is None:
            return self.seqlen_k
        return min(self.seqlen_k, max(queries + last - self.min_offset, 1))

    def count_key_tiles(self, specialization: Specialization) -> int:
        """How many tiles of keys a kernel has."""
        n, grid = specialization.block_n, self.grid
        if grid is None or not specialization.grid_by_rows:
            return count_tiles(self.seqlen_k, n)
        return count_tiles(grid.prefix, n) + grid.key_grid[0]

    def _expand_bias(self, table: OffsetTable) -> Tensor:
        """Its rows with `BIAS_MARGIN`."""
        rows = self.table_window.expand(table)
        return pad(rows.unsqueeze(0), (BIAS_MARGIN, BIAS_MARGIN), mode="replicate").squeeze(0)

    def _tile_ranges(self, m: int, n: int) -> TileRanges | None:
        """Which keys and queries tiles of `m` queries and `n` keys may see; None: no such limit."""
        found: list[TileRanges] = []
        if self.documents is not None and self.query_documents is not None:
            found.append(tiles_of_documents(self.query_documents, self.documents, m, n))
        if self.key_ranges is not None:
            found.append(tiles_of_key_ranges(self.key_ranges.of_queries, self.seqlen_k, m, n))
        if self.grid_indices is not None and self.grid_indices.window_ranges is not None:
            ranges = self.grid_indices.window_ranges
            found.append(tiles_of_key_ranges(ranges, self.seqlen_k, m, n))
        if not found:
            return None
        of_queries, of_keys = (
            x.expand(self.batch, -1, -1).contiguous() for x in reduce(intersect, found)
        )
        return of_queries, of_keys


def _documents(documents: Tensor | None) -> TokenTensor | None:
    if documents is None:
        return None
    stride_b = documents.stride(0) if documents.shape[0] > 1 else 0
    return TokenTensor(documents, stride_b, 0, 1)


def _within_32_bits(offset: int) -> int:
    """An offset on the same side of all pairs, far from where numbers of 32 bits end."""
    return min(max(offset, -_FAR), _FAR)
