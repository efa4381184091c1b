"""One call of the op, laid out for the blocks: shared by forward and backward."""

from __future__ import annotations

import torch
from torch import Tensor

from ...shear import shear_view
from ...terms import Terms
from .band import BandTable
from .plan import Block, Rows, Shape, row_blocks, window

__all__ = ["Problem", "Workspace", "folded", "table_product"]


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
        self.terms, self.mask, self.seed = terms, mask, seed
        self.causal, self.scale, self.dropout = causal, scale, dropout
        self.q = q.to(dtype) * scale
        self.p = self.q if terms.q_rel is None else terms.q_rel.to(dtype) * scale
        self.k, self.v = k.to(dtype).contiguous(), v.to(dtype).contiguous()
        self.shape = Shape(
            batch, groups, heads // groups, queries, keys, start, causal, q.device.type
        )
        edges = window(terms.tables.values())
        self.rows = row_blocks(self.shape, edges)
        self.tables = {
            name: BandTable(table, self.rows, edges or (0, 0), dtype, name in learn)
            for name, table in terms.tables.items()
        }
        self.workspace = Workspace(self.q)
        self._may_hide_all = mask is not None or (
            terms.bias is not None and _may_be_infinite(terms.bias.rows)
        )

    def weights(self, block: Block, lse: Tensor | None = None) -> Tensor:
        """`softmax(s)` of a block, `(b, h, m, n)`; the log-sum-exp is written to `lse`."""
        rows = block.rows
        q = folded(self.q[block.queries], self.shape.repeat)
        k = self.k[block.keys].flatten(0, 1)
        scores = self.workspace.take("weights", *q.shape[:2], rows.columns)
        torch.bmm(q, k.mT, out=scores)
        scores = self._unfolded(scores, block)
        self._add_terms(block, scores)
        empty = self._apply_masks(block, scores)
        if lse is not None:
            torch.logsumexp(scores, -1, out=lse)
        torch.softmax(scores, -1, out=scores)
        return scores if empty is None else scores.masked_fill_(empty, 0)

    def dropped(self, block: Block, shape: torch.Size) -> Tensor:
        """True where dropout drops a weight: the same each time for a block."""
        assert self.seed is not None
        generator = torch.Generator(self.q.device).manual_seed(int(self.seed) + block.number)
        words = torch.empty(-(-shape.numel() // 4), dtype=torch.int64, device=self.q.device)
        words.random_(-(1 << 63), None, generator=generator)
        # Four draws of 16 bits from each word: far cheaper than a Bernoulli draw for each weight.
        draws = words.view(torch.int16)[: shape.numel()].view(shape)
        return draws < self.drop_level - (1 << 15)

    @property
    def drop_level(self) -> int:
        """The dropout probability in units of 2**-16, to which it is rounded."""
        return min(round(self.dropout * (1 << 16)), (1 << 16) - 1)

    @property
    def kept_share(self) -> float:
        """The probability that a weight is kept."""
        return 1 - self.drop_level / (1 << 16)

    def _unfolded(self, x: Tensor, block: Block) -> Tensor:
        batch = block.batch.stop - block.batch.start
        return x.view(batch, -1, block.rows.count, x.shape[-1])

    def _add_terms(self, block: Block, scores: Tensor) -> None:
        rows, heads = block.rows, block.heads
        keys, bias = self.tables.get("keys"), self.tables.get("bias")
        p = self.p[block.queries]
        for side, columns in self.far_columns(rows):
            far_key = keys and keys.far(side, heads)
            if far_key is not None:
                scores[..., columns] += p @ far_key.mT
            far_bias = bias and bias.far(side, heads)
            if far_bias is not None:
                scores[..., columns] += far_bias[:, :, None]
        if not rows.band or (keys is None and bias is None):
            return
        band = None
        if keys is not None:
            band = self.workspace.take("band", *p.shape[:-1], rows.span)
            table_product(p, keys.band(rows, heads), out=band[..., rows.met])
        if bias is not None:
            line = bias.band(rows, heads)[:, None]
            if band is None:
                band = self.workspace.take("band", line.shape[0], rows.count, rows.span)
                band[..., rows.met] = line
            else:
                band[..., rows.met] += line
        assert band is not None
        self.add_sheared(scores, block, band)

    def add_sheared(self, scores: Tensor, block: Block, band: Tensor) -> None:
        """Add `band ([b,] h, m, span)`, by offset, to the band columns of `scores (b, h, m, n)`."""
        rows = block.rows
        band[..., rows.met.stop :] = 0
        scores[..., rows.left : rows.right] += shear_view(band, rows.band)

    def far_columns(self, rows: Rows) -> list[tuple[int, slice]]:
        """The side and the columns of each far region that is not empty."""
        regions = [(0, slice(0, rows.left)), (1, slice(rows.right, rows.columns))]
        return [(side, some) for side, some in regions if some.start < some.stop]

    def mask_block(self, block: Block, mask: Tensor) -> Tensor:
        """The part of a broadcastable `mask` that a block meets, still broadcastable."""
        columns = slice(0, block.rows.columns)
        index = (*block.queries, columns)
        return mask[
            tuple(
                part if size > 1 else slice(None)
                for part, size in zip(index, mask.shape, strict=True)
            )
        ]

    def _apply_masks(self, block: Block, scores: Tensor) -> Tensor | None:
        """Mask in place; where rows are empty, `(b, h, m, 1)`, or None if none can be."""
        rows = block.rows
        if self.mask is not None:
            mask = self.mask_block(block, self.mask)
            if mask.dtype == torch.bool:
                scores.masked_fill_(~mask, -torch.inf)
            else:
                scores += mask
        if self.causal and rows.columns > rows.position + 1:
            begin = max(rows.position + 1, 0)
            ahead = torch.arange(begin, rows.columns, device=scores.device) > torch.arange(
                rows.position, rows.position + rows.count, device=scores.device
            ).unsqueeze(1)
            scores[..., begin:].masked_fill_(ahead, -torch.inf)
        if not self._may_hide_all and not (self.causal and rows.position < 0):
            return None
        return scores.amax(-1, keepdim=True) == -torch.inf


def _may_be_infinite(rows: Tensor) -> bool:
    """Whether a bias may hide keys; elsewhere than on the CPU, looking would mean to wait."""
    return rows.device.type != "cpu" or bool((rows == -torch.inf).any())


def folded(x: Tensor, repeat: int) -> Tensor:
    """`(b, g * n, m, d)` as `(b * g, n * m, d)`: the query heads that share a key head together."""
    b, h, m, d = x.shape
    return x.reshape(b * h // repeat, repeat * m, d)


def table_product(x: Tensor, rows: Tensor, out: Tensor) -> Tensor:
    """`x (b, h, m, d)` times `rows (h or 1, w, d)` transposed, `(b, h, m, w)`."""
    if rows.shape[0] == 1:
        torch.mm(x.reshape(-1, x.shape[-1]), rows[0].mT, out=out.flatten(0, 2))
        return out
    return torch.matmul(x, rows.mT, out=out)
