"""One call, laid out for the kernels: shared by forward and backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...terms import OffsetTable
from .document_ranges import tile_ranges
from .grid_indices import GridIndices
from .kernel_args import KernelInputs, KernelSizes, Specialization, TokenTensor
from .tensor_args import (
    maybe_token_tensor,
    pair_tensor,
    table_tensor,
    token_tensor,
    with_dense_rows,
)
from .window import TableWindow, shared_window

__all__ = ["GridShape", "PreparedCall"]


@dataclass(frozen=True)
class GridShape:
    """The grid of a call.

    Args:
        key_grid: tokens along each axis among the keys.
        query_grid: the same among the queries.
        prefix: tokens before the grid.
    """

    key_grid: tuple[int, ...]
    query_grid: tuple[int, ...]
    prefix: int


class PreparedCall:
    """The tensors of a call as the kernels take them.

    Args:
        tensors: by name, or None: `q k v q_rel mask key_axis_logits query_axis_logits joint_bias
            documents seed`.
        tables: by name: `keys queries bias values`, those that there are.
        grid: of the tokens; None for a sequence.
        causal: whether keys ahead of the query are left out.
        scale: of the scores.
        query_start: position of the first query, in tokens.
        dropout: probability.
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
    ) -> None:
        q, k, v, q_rel = (with_dense_rows(tensors[name]) for name in ("q", "k", "v", "q_rel"))
        assert q is not None
        assert k is not None
        assert v is not None
        self.q, self.k, self.v, self.q_rel = q, k, v, q_rel
        self.mask, self.documents = tensors["mask"], tensors["documents"]
        self.key_axis_logits, self.query_axis_logits = (
            tensors["key_axis_logits"],
            tensors["query_axis_logits"],
        )
        self.joint_bias, self.seed = tensors["joint_bias"], tensors["seed"]
        self.tables = tables
        self.batch, self.heads, self.seqlen_q, _ = q.shape
        self.kv_heads, self.seqlen_k = k.shape[1], k.shape[2]
        self.causal, self.scale, self.dropout = causal, scale, dropout
        self.grid = grid
        self.window = shared_window(
            tables.values(), query_start, self.seqlen_q, self.seqlen_k,
            causal=causal and grid is None,
        ) or TableWindow(0, 1)  # fmt: skip
        # Each `(h or 1, window.num_rows[, d])`.
        self.window_tables = {name: self.window.expand(table) for name, table in tables.items()}
        # However far off the queries are, positions fit in 32 bits: only offsets count.
        self.query_start = min(max(query_start, -self.seqlen_q), self.seqlen_k)
        self.window_first = self.window.first + query_start - self.query_start
        self.grid_indices = None
        if grid is not None:
            self.grid_indices = GridIndices.of(
                grid.key_grid, grid.query_grid, grid.prefix, q.device
            )

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
        """Of `q`, `rel_queries` and `v`."""
        return self.q.shape[3], self.rel_queries.shape[3], self.v.shape[3]

    def kernel_args(
        self, specialization: Specialization, num_tiles: int, programs: int
    ) -> tuple[Any, ...]:
        """`KernelInputs` and `KernelSizes`: `num_tiles` are dealt out among `programs`."""
        documents, key_ranges, query_ranges = self._documents(
            specialization.block_m, specialization.block_n
        )
        indices = self.grid_indices
        threshold = min(round(self.dropout * (1 << 32)), (1 << 32) - 1)
        workspace = max(programs * specialization.program_buffers, 1)
        tables = {
            f"{name}_table": table_tensor(self.window_tables.get(name))
            for name in ("keys", "queries", "bias", "values")
        }
        inputs = KernelInputs(
            q=token_tensor(self.q),
            k=token_tensor(self.k),
            v=token_tensor(self.v),
            q_rel=maybe_token_tensor(self.q_rel),
            **tables,
            mask=pair_tensor(self.mask),
            documents=documents,
            key_ranges=key_ranges,
            query_ranges=query_ranges,
            key_axis_logits=maybe_token_tensor(with_dense_rows(self.key_axis_logits)),
            query_axis_logits=maybe_token_tensor(with_dense_rows(self.query_axis_logits)),
            joint_bias=table_tensor(self.joint_bias),
            key_coordinates=None if indices is None else indices.key_coordinates,
            query_coordinates=None if indices is None else indices.query_coordinates,
            key_joint_index=None if indices is None else indices.key_joint_index,
            query_joint_index=None if indices is None else indices.query_joint_index,
            seed=self.seed,
            offset_buffers=self.q.new_empty(workspace, dtype=torch.float32),
            heads=self.heads,
            heads_per_kv_head=self.heads // self.kv_heads,
            scale=self.scale,
            dropout_threshold=threshold,
            keep_scale=1 / (1 - threshold / (1 << 32)),
        )
        return inputs, *KernelSizes(
            seqlen_q=self.seqlen_q,
            seqlen_k=self.seqlen_k,
            query_start=self.query_start,
            window_first=self.window_first,
            window_rows=self.window.num_rows,
            num_tiles=num_tiles,
        )

    def _documents(self, m: int, n: int) -> tuple[TokenTensor | None, Tensor | None, Tensor | None]:
        """The documents, and which keys and queries tiles of `m` queries and `n` keys may see."""
        if self.documents is None:
            return None, None, None
        documents = self.documents.long().contiguous()
        of_queries = documents[:, self.query_start : self.query_start + self.seqlen_q]
        key_ranges, query_ranges = (
            ranges.expand(self.batch, -1, -1).contiguous()
            for ranges in tile_ranges(of_queries, documents, m, n)
        )
        stride_b = documents.stride(0) if documents.shape[0] > 1 else 0
        return TokenTensor(documents, stride_b, 0, 1), key_ranges, query_ranges
