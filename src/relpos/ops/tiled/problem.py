"""One call of the op, laid out for the blocks: shared by forward and backward."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...terms import Terms
from .band import BandTable
from .documents import document_reach
from .grid import GridBlocks
from .plan import Block, Reach, Rows, Shape, row_blocks, window

__all__ = ["GridTensors", "Problem", "Workspace", "folded"]


@dataclass(frozen=True)
class GridTensors:
    """The terms of a grid, by place (`places.py`).

    Args:
        blocks: the grid's sizes.
        by_key: `(b or 1, h or 1, i, s)`, in logits; or None.
        by_query: `(b, h, j, s)`, in logits; or None.
        joint_bias: `(h or 1, r)`: the joint bias, flat; or None.
    """

    blocks: GridBlocks
    by_key: Tensor | None
    by_query: Tensor | None
    joint_bias: Tensor | None


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


class Problem:
    """Inputs in the dtype of the computation, and what every block needs of them.

    `q` and `p` (q_rel, or `q` again) are kept scaled, so that scores need no further factor.

    Args:
        q: `(b, h, i, d)`, any layout.
        k: `(b, g, j, d)`.
        v: `(b, g, j, dv)`.
        terms: the tables.
        mask: four axes, each full or 1; or None.
        documents: `(b or 1, j)`, or None.
        grid: the grid of the tokens; or None.
        seed: of the dropout, int64; or None.
        causal: whether keys ahead of the query are left out.
        scale: of the scores.
        start: position of the first query.
        dropout: probability.
        learn: names of the tables that will collect gradients.
    """

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        terms: Terms,
        mask: Tensor | None,
        documents: Tensor | None,
        grid: GridTensors | None,
        seed: Tensor | None,
        *,
        causal: bool,
        scale: float,
        start: int,
        dropout: float,
        learn: frozenset[str] = frozenset(),
    ) -> None:
        dtype = torch.promote_types(q.dtype, torch.float32)
        (batch, heads, queries, _), (_, groups, keys, _) = q.shape, k.shape
        self.terms, self.mask, self.documents = terms, mask, documents
        self.grid, self.seed = grid, seed
        self.causal, self.scale, self.dropout = causal, scale, dropout
        self.q = q.to(dtype) * scale
        self.p = self.q if terms.q_rel is None else terms.q_rel.to(dtype) * scale
        self.k, self.v = k.to(dtype).contiguous(), v.to(dtype).contiguous()
        self.shape = Shape(
            batch, groups, heads // groups, queries, keys, start, causal, q.device.type,
            whole=grid is not None,
        )  # fmt: skip
        edges = window(terms.tables.values())
        self.rows = row_blocks(self.shape, edges, self._reach())
        self.tables = {
            name: BandTable(table, self.rows, edges or (0, 0), dtype, name in learn)
            for name, table in terms.tables.items()
        }
        self.workspace = Workspace(self.q)
        # Elsewhere than on the CPU, looking at the result would mean to wait for the device.
        self.expects_empty_rows = (
            mask is not None or documents is not None or q.device.type != "cpu"
        )

    def _reach(self) -> Reach | None:
        # Elsewhere than on the CPU, looking at the documents would mean to wait for the device.
        if self.documents is None or self.documents.device.type != "cpu" or self.grid is not None:
            return None
        return document_reach(self.documents, self.shape.start)

    @property
    def drop_level(self) -> int:
        """The dropout probability in units of 2**-16, to which it is rounded."""
        return min(round(self.dropout * (1 << 16)), (1 << 16) - 1)

    @property
    def kept_share(self) -> float:
        """The probability that a weight is kept."""
        return 1 - self.drop_level / (1 << 16)

    def dropped(self, block: Block, shape: torch.Size) -> Tensor:
        """True where dropout drops a weight: the same each time for a block."""
        assert self.seed is not None
        generator = torch.Generator(self.q.device).manual_seed(int(self.seed) + block.number)
        words = torch.empty(-(-shape.numel() // 4), dtype=torch.int64, device=self.q.device)
        words.random_(-(1 << 63), None, generator=generator)
        # Four draws of 16 bits from each word: far cheaper than a Bernoulli draw for each weight.
        draws = words.view(torch.int16)[: shape.numel()].view(shape)
        return draws < self.drop_level - (1 << 15)

    def far_columns(self, rows: Rows) -> list[tuple[int, slice]]:
        """The side and the columns of each far region that is not empty."""
        regions = [(0, slice(0, rows.left)), (1, slice(rows.right, rows.columns))]
        return [(side, some) for side, some in regions if some.start < some.stop]

    def part(self, block: Block, x: Tensor, last: slice = slice(None)) -> Tensor:
        """What a block meets of a tensor that broadcasts to `(b, h, i, ...)`, as broadcastable."""
        index = (*block.queries, last)
        return x[
            tuple(
                part if size > 1 else slice(None) for part, size in zip(index, x.shape, strict=True)
            )
        ]


def folded(x: Tensor, repeat: int) -> Tensor:
    """`(b, g * n, m, d)` as `(b * g, n * m, d)`: the query heads that share a key head together."""
    b, h, m, d = x.shape
    return x.reshape(b * h // repeat, repeat * m, d)
