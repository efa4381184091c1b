"""What every position scheme is: a module that acts on queries and keys and hands over terms."""

from __future__ import annotations

from math import sqrt
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from ..attention import relative_logits
from ..terms import GridTerms, OffsetTable, Terms

__all__ = ["BiasPosition", "Position"]


class Position(nn.Module):
    """A scheme, called as `q, k, terms = position(q, k)`, or `position(q, k, x)` if it reads x.

    Subclassing it is a convenience, no condition: layers take any module that is called so.
    """

    # Whether `forward` wants the layer's input `x (b, i, e)` as its third argument.
    reads_input: ClassVar[bool] = False
    # Whether its rows depend on where the queries start: called with `query_start=` where one is
    # given.
    reads_query_start: ClassVar[bool] = False

    def logits(
        self,
        q: Float[Tensor, "b h i d"],
        k: Float[Tensor, "b g j d"],
        x: Float[Tensor, "b i e"] | None = None,
        *,
        scale: float | None = None,
        query_start: int | None = None,
    ) -> Float[Tensor, "b h i j"]:
        """What the scheme adds to the scores `scale * q_i . k_j`, to look at: `i x j` memory.

        Args:
            q: queries.
            k: keys.
            x: the layer's input, for a scheme that reads it.
            scale: of the attention; None means `1 / sqrt(d)`.
            query_start: position of the first query; None means that the queries are the last.
        """
        start = {"query_start": query_start} if self.reads_query_start else {}
        moved_q, moved_k, terms = self(q, k, *[x] * self.reads_input, **start)
        added = relative_logits(moved_q, moved_k, terms, scale=scale, query_start=query_start)
        if moved_q is q and moved_k is k:
            return added
        scale = 1 / sqrt(q.shape[3]) if scale is None else scale
        return added + scale * (_content(moved_q, moved_k) - _content(q, k))


def _content(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.repeat_interleave(q.shape[1] // k.shape[1], dim=1).mT


class BiasPosition(Position):
    """A scheme whose only term is a bias, the same whatever the tokens are.

    Subclasses give `table(i, j)`.
    """

    def table(self, i: int, j: int) -> OffsetTable:
        """The bias that `i` queries, the last of `j` positions, need at least.

        Args:
            i: number of queries.
            j: number of keys.
        """
        raise NotImplementedError

    def forward(
        self, q: Float[Tensor, "b h i d"], k: Float[Tensor, "b g j d"]
    ) -> tuple[Float[Tensor, "b h i d"], Float[Tensor, "b g j d"], Terms | GridTerms]:
        """`q` and `k` unchanged, and the bias.

        Args:
            q: queries.
            k: keys.
        """
        return q, k, Terms(bias=self.table(q.shape[2], k.shape[2]))

    def dense(self, i: int, j: int | None = None) -> Float[Tensor, "h i j"]:
        """The bias of `i` queries, the last of `j` positions (None: `i`), as a plain tensor.

        Args:
            i: number of queries.
            j: number of keys.
        """
        table = self.table(i, i if j is None else j)
        empty = table.rows.new_zeros(1, table.rows.shape[0], 1, 1)
        keys = empty.expand(-1, -1, i if j is None else j, -1)
        queries = empty.expand(-1, -1, i, -1)
        return relative_logits(queries, keys, Terms(bias=table), scale=1.0)[0]
