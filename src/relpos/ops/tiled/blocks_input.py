"""One call of the op, laid out for the blocks: shared by forward and backward."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...offsets import call_offsets
from ..arguments import Arguments
from ..inputs import DropoutOrigin
from ..offset_window import OffsetWindow
from .band import BandTable
from .documents import hidden_by_documents, keys_of_documents
from .dropout import drop_threshold, dropped_of_larger_call
from .grid_blocks import GridBlocks
from .local_keys import intersect, keys_of_ranges, keys_of_window
from .plan import Block, CallShape, RowBlock, VisibleKeys, row_blocks

__all__ = ["BlocksInput", "WholeRows", "Workspace", "folded"]


@dataclass(frozen=True)
class WholeRows:
    """What is known over all keys of rows of whose keys a call has a part.

    Args:
        softmax: `(2, b, h, i)`, the largest score of a row and the sum of `exp(s - largest)`.
        delta: `(b, h, i)`, `dO_i . o_i - d_lse_i`.
    """

    softmax: Tensor
    delta: Tensor


class Workspace:
    """Buffers that are reused from block to block, by name."""

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._buffers: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """An uninitialised `shape` tensor; the last one taken under this name is gone."""
        size = torch.Size(shape).numel()
        if name not in self._buffers or self._buffers[name].numel() < size:
            self._buffers.pop(name, None)
            self._buffers[name] = self._like.new_empty(size)
        return self._buffers[name][:size].view(shape)


class BlocksInput:
    """Inputs in the dtype of the computation, and what every block needs of them.

    `q` and `p` (q_rel, or `q` again) are kept scaled, so that scores need no further factor.

    Args:
        arguments: of the operator.
        learn: names of the tables that will collect gradients; None: forward alone.
        whole_rows: for the gradients of a part of the keys.
    """

    def __init__(
        self,
        arguments: Arguments,
        learn: frozenset[str] | None = None,
        whole_rows: WholeRows | None = None,
    ) -> None:
        given, dtype = arguments, arguments.wide
        (batch, heads, queries, _), (_, kv_heads, keys, _) = given.q.shape, given.k.shape
        self.terms, self.mask, self.documents = given.terms, given.mask, given.documents
        self.whole_rows, self.query_documents = whole_rows, given.query_documents
        self.dropout_origin = given.dropout_origin
        self.key_axis_logits, self.joint_bias = given.key_axis_logits, given.joint_bias
        self.query_axis_logits, self.seed = given.query_axis_logits, given.seed
        self.causal, self.scale, self.dropout = given.causal, given.scale, given.dropout
        self.key_ranges, self.softcap, self.windows = given.key_ranges, given.softcap, given.windows
        self.backward, learning = learn is not None, learn or frozenset()
        # Of the block whose scores backward computed last: the derivative of the cap.
        self.cap_slope: Tensor | None = None
        self.grid = None
        if given.key_grid:
            sizes = tuple(given.key_grid), tuple(given.query_grid)
            self.grid = GridBlocks(*sizes, given.prefix, self.windows, given.axis_ranges)
        self.q = given.q.to(dtype) * given.scale
        self.p = self.q if given.q_rel is None else given.q_rel.to(dtype) * given.scale
        self.k, self.v = given.k.to(dtype).contiguous(), given.v.to(dtype).contiguous()
        self.shape = CallShape(
            batch, kv_heads, heads // kv_heads, queries, keys, given.query_start, given.causal,
            given.q.device.type, whole=self.grid is not None,
        )  # fmt: skip
        window = OffsetWindow.of(self.terms.tables.values())
        offsets = None
        if window is not None and self.windows:
            offsets = call_offsets(
                given.query_start, queries, keys, causal=given.causal, window=self.windows[0]
            )
            window = window.cut(*offsets)
        self.rows = row_blocks(self.shape, window, self._visible_keys())
        self.tables: dict[str, BandTable] = {}
        if window is not None:
            self.tables = {
                name: BandTable(table, self.rows, window, offsets, dtype, learn=name in learning)
                for name, table in self.terms.tables.items()
            }
        self.workspace = Workspace(self.q)
        # Elsewhere than on the CPU, looking at the result would mean to wait for the device.
        may_hide = (self.mask, self.documents, self.key_ranges, given.axis_ranges)
        self.expects_empty_rows = bool(self.windows) or any(x is not None for x in may_hide)
        self.expects_empty_rows |= self.q.device.type != "cpu"

    def _visible_keys(self) -> VisibleKeys | None:
        query_start, keys = self.shape.query_start, self.shape.keys
        every = []
        if self.windows and self.grid is None:
            every.append(keys_of_window(self.windows[0], query_start, keys))
        if self.windows and self.grid is not None:
            every.append(self.grid.keys_of_windows)
        # Elsewhere than on the CPU, looking at these would mean to wait for the device.
        if self.documents is not None and self.documents.device.type == "cpu":
            every.append(keys_of_documents(self.documents, self._documents_of_queries()))
        if self.key_ranges is not None and self.key_ranges.device.type == "cpu":
            every.append(keys_of_ranges(self.key_ranges, keys))
        axis_ranges = None if self.grid is None else self.grid.axis_ranges
        if axis_ranges is not None and axis_ranges.device.type == "cpu":
            assert self.grid is not None
            every.append(self.grid.keys_of_ranges(axis_ranges))
        visible = intersect(every)
        return visible if self.grid is None or visible is None else self.grid.whole_lines(visible)

    def _documents_of_queries(self) -> Tensor:
        if self.query_documents is not None:
            return self.query_documents
        assert self.documents is not None
        start = self.shape.query_start
        return self.documents[:, start : start + self.shape.queries]

    def hidden_by_documents(self, block: Block) -> Tensor:
        """`(b or 1, 1, m, n)`: True where query and key share no document."""
        assert self.documents is not None
        return hidden_by_documents(self.documents, self._documents_of_queries(), block)

    @property
    def drop_level(self) -> int:
        """The dropout probability in units of 2**-16, to which it is rounded."""
        return min(round(self.dropout * (1 << 16)), (1 << 16) - 1)

    @property
    def kept_share(self) -> float:
        """The probability that a weight is kept."""
        if self.dropout_origin:
            return 1 - drop_threshold(self.dropout) / (1 << 32)
        return 1 - self.drop_level / (1 << 16)

    def dropped(self, block: Block, shape: torch.Size) -> Tensor:
        """True where dropout drops a weight: the same each time for a block."""
        assert self.seed is not None
        if self.dropout_origin:
            return dropped_of_larger_call(
                block, self.seed, self.dropout, DropoutOrigin(*self.dropout_origin)
            )
        generator = torch.Generator(self.q.device).manual_seed(int(self.seed) + block.number)
        words = torch.empty(-(-shape.numel() // 4), dtype=torch.int64, device=self.q.device)
        words.random_(-(1 << 63), None, generator=generator)
        # Four draws of 16 bits from each word: far cheaper than a Bernoulli draw for each weight.
        draws = words.view(torch.int16)[: shape.numel()].view(shape)
        return draws < self.drop_level - (1 << 15)

    def far_columns(self, rows: RowBlock) -> list[tuple[int, slice]]:
        """The side and the columns of each far region that is not empty."""
        regions = [(0, slice(0, rows.left)), (1, slice(rows.right, rows.columns))]
        return [(side, columns) for side, columns in regions if columns.start < columns.stop]

    def part(self, block: Block, x: Tensor, last: slice = slice(None)) -> Tensor:
        """A block's part of a tensor that broadcasts to `(b, h, i, ...)`, as broadcastable."""
        index = (*block.queries, last)
        return x[
            tuple(
                part if size > 1 else slice(None) for part, size in zip(index, x.shape, strict=True)
            )
        ]


def folded(x: Tensor, heads_per_kv_head: int) -> Tensor:
    """`(b, g * n, m, d)` as `(b * g, n * m, d)`: the query heads that share a key head together."""
    b, h, m, d = x.shape
    return x.reshape(b * h // heads_per_kv_head, heads_per_kv_head * m, d)
