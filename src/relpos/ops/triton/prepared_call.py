"""One call, laid out for the kernels: shared by forward and backward."""

from __future__ import annotations

from functools import cached_property, reduce
from typing import Any

import torch
from torch import Tensor

from ...terms import OffsetTable
from ..inputs import DropoutOrigin
from .axis_windows import AxisWindows
from .bias_rows import bias_rows
from .cached_tensors import cached_tensors
from .call_plan import CallPlan, CallSettings
from .grid_indices import grid_indices
from .grid_marks import grid_marks
from .kernel_args import KernelInputs, KernelSizes, Specialization, TokenTensor
from .key_ranges import KeyRanges
from .tensor_args import (
    maybe_token_tensor,
    pair_tensor,
    table_tensor,
    token_tensor,
    with_dense_rows,
)
from .tile_ranges import TileRanges, intersect, tiles_of_documents, tiles_of_key_ranges
from .tuning import count_tiles

__all__ = ["PreparedCall"]


class PreparedCall:
    """The tensors of a call as the kernels take them.

    Args:
        tensors: by name, or None: `q k v q_rel mask key_axis_logits query_axis_logits joint_bias
            documents query_documents key_ranges axis_ranges seed`.
        tables: by name: `keys queries bias values`, those that there are.
        settings: all else.
        dropout_origin: where the call lies in a larger one, if that is what `settings.is_part`
            says.
    """

    def __init__(
        self,
        tensors: dict[str, Tensor | None],
        tables: dict[str, OffsetTable],
        settings: CallSettings,
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
                first = settings.query_start
                self.query_documents = self.documents[:, first : first + q.shape[2]]
            self.query_documents = self.query_documents.long().contiguous()
        self.key_axis_logits, self.query_axis_logits = (
            tensors["key_axis_logits"],
            tensors["query_axis_logits"],
        )
        self.joint_bias, self.seed = tensors["joint_bias"], tensors["seed"]
        self.tables, self.grid = tables, settings.grid
        self.batch, self.heads, self.seqlen_q, _ = q.shape
        self.kv_heads, self.seqlen_k = k.shape[1], k.shape[2]
        self.scale, self.softcap = settings.scale, settings.softcap
        assert settings.is_part == (dropout_origin is not None)
        self.dropout_origin = (
            None if dropout_origin is None else _origin_numbers(dropout_origin, q.device)
        )
        as_taken = {
            "q": q, "k": k, "v": v, "q_rel": q_rel, "documents": self.documents,
            "query_documents": self.query_documents,
        }  # fmt: skip
        self.plan = plan = CallPlan.of(tensors | as_taken, tables, settings)
        self.traits, self.table_window = plan.traits, plan.table_window
        self.table_first, self.query_start = plan.table_first, plan.query_start
        self.min_offset, self.max_offset = plan.min_offset, plan.max_offset
        # Each `(h or 1, num_rows[, d])`; the bias as kernels take it.
        self.expanded_tables = {
            name: self._expand_bias(table) if name == "bias" else self.table_window.expand(table)
            for name, table in tables.items()
        }
        self.key_ranges = None
        if (key_ranges := tensors["key_ranges"]) is not None:
            self.key_ranges = KeyRanges.of(key_ranges, self.batch, self.seqlen_k)
        self.grid_indices = self.axis_windows = None
        if (grid := settings.grid) is not None:
            self.grid_indices = grid_indices(grid.key_grid, grid.query_grid, grid.prefix, q.device)
            self.axis_windows = AxisWindows.of(
                grid, settings.window, tensors["axis_ranges"], q.device
            )
        self._ranges_of_tiles: dict[tuple[int, int], TileRanges] = {}

    @property
    def is_empty(self) -> bool:
        """Whether there is no pair at all."""
        return 0 in (self.batch, self.seqlen_q, self.seqlen_k)

    @property
    def rel_queries(self) -> Tensor:
        """What is dotted with the table of keys: `q_rel`, or `q`."""
        return self.q if self.q_rel is None else self.q_rel

    @property
    def widths(self) -> tuple[int, int, int]:
        """The widths of `q`, `rel_queries` and `v`."""
        return self.traits.widths

    @property
    def precision(self) -> str:
        """The precision of float32 matrix products, as `Specialization` has it."""
        return self.plan.precision

    def kernel_args(self, specialization: Specialization, num_tiles: int) -> tuple[Any, ...]:
        """`KernelInputs` and `KernelSizes` of a kernel of `num_tiles` tiles."""
        inputs = self._kernel_inputs
        if specialization.has_tile_ranges:
            tile = specialization.block_m, specialization.block_n
            if tile not in self._ranges_of_tiles:
                self._ranges_of_tiles[tile] = self._tile_ranges(*tile)
            of_queries, of_keys = self._ranges_of_tiles[tile]
            inputs = inputs._replace(tile_key_ranges=of_queries, tile_query_ranges=of_keys)
        if specialization.axes_by_product:
            of_keys, of_queries = self._marks
            inputs = inputs._replace(key_marks=of_keys, query_marks=of_queries)
        return inputs, *self._kernel_sizes, num_tiles

    @cached_property
    def _kernel_sizes(self) -> tuple[int | None, ...]:
        """`KernelSizes` without the last."""
        *sizes, _ = KernelSizes(
            seqlen_q=self.seqlen_q,
            seqlen_k=self.seqlen_k,
            query_start=self.query_start,
            table_first=self.table_first,
            table_rows=self.table_window.num_rows,
            min_offset=self.min_offset,
            max_offset=self.max_offset,
            num_tiles=None,
        )
        return tuple(sizes)

    @cached_property
    def _kernel_inputs(self) -> KernelInputs:
        """Without what depends on the tile."""
        indices, windows = self.grid_indices, self.axis_windows
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
            documents=_by_sequence(self.documents),
            query_documents=_by_sequence(self.query_documents),
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
            key_marks=None,
            query_marks=None,
            axis_windows=None if windows is None else _by_sequence(windows.of_queries),
            seed=self.seed,
            heads=self.heads,
            heads_per_kv_head=self.heads // self.kv_heads,
            scale=self.scale,
            softcap=self.softcap or None,
            dropout_threshold=self.plan.dropout_threshold,
            keep_scale=self.plan.keep_scale,
            dropout_origin=self.dropout_origin,
        )

    @cached_property
    def _marks(self) -> tuple[TokenTensor | None, TokenTensor | None]:
        """The marks of keys and of queries, where something is multiplied with them."""
        grid, indices, traits, dtype = self.grid, self.grid_indices, self.traits, self.q.dtype
        assert grid is not None
        assert indices is not None
        of_keys = of_queries = None
        if traits.has_key_axis_logits or traits.has_axis_weights:
            of_keys = grid_marks(indices.key_coordinates, sum(grid.key_grid), dtype)
        if traits.has_query_axis_logits:
            of_queries = grid_marks(indices.query_coordinates, sum(grid.query_grid), dtype)
        return of_keys, of_queries

    @property
    def last_offset(self) -> int | None:
        """The largest offset at which a pair takes part, by a window or causally; or None."""
        return 0 if self.max_offset is None and self.traits.is_causal else self.max_offset

    def keys_of_a_tile(self, queries: int) -> int:
        """How many keys so many queries see at most, by the window."""
        if self.min_offset is None:
            return self.seqlen_k
        last = self.last_offset
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
        """Its rows as the kernels read them."""
        rows = self.table_window.expand(table)
        return bias_rows(rows, self.scale, over_scale=self.traits.bias_over_scale)

    def _tile_ranges(self, m: int, n: int) -> TileRanges:
        """Which keys and queries tiles of `m` queries and `n` keys may see."""
        found: list[TileRanges] = []
        if self.documents is not None and self.query_documents is not None:
            found.append(tiles_of_documents(self.query_documents, self.documents, m, n))
        if self.key_ranges is not None:
            found.append(tiles_of_key_ranges(self.key_ranges.of_queries, self.seqlen_k, m, n))
        if self.axis_windows is not None:
            ranges = self.axis_windows.key_ranges
            found.append(tiles_of_key_ranges(ranges, self.seqlen_k, m, n))
        of_queries, of_keys = (
            x.expand(self.batch, -1, -1).contiguous() for x in reduce(intersect, found)
        )
        return of_queries, of_keys


@cached_tensors
def _origin_numbers(origin: DropoutOrigin, device: torch.device) -> Tensor:
    """`(5,)`: a tensor, since Triton compiles anew for numbers.

    Each is filled in on its device: a graph captures no copy from where the CPU may page.
    """
    numbers = [torch.full((1,), number, dtype=torch.int64, device=device) for number in origin]
    return torch.cat(numbers)


def _by_sequence(x: Tensor | None) -> TokenTensor | None:
    """Integers `(b or 1, ...)`, contiguous, or None."""
    if x is None:
        return None
    return TokenTensor(x, x.stride(0) if x.shape[0] > 1 else 0, 0, 1)
