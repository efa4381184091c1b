"""What every position scheme is: a module that acts on queries and keys and hands over terms."""

from __future__ import annotations

from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..checks import check_count, check_floating, check_queries, one_line
from ..ops import relative_logits
from ..terms import GridTerms, OffsetTable, Terms
from .handover import apply_position, resolve_scale
from .scales import scale_or_default
from .starts import start_of_queries

__all__ = ["BiasPosition", "Position"]


class Position(nn.Module):
    """A scheme, called as `q, k, terms = position(q, k)`, or `position(q, k, x)` if it reads x.

    Subclassing it is a convenience, no condition: layers take any module that is called so, and
    take an attribute that it lacks for what it is here.

    Attributes:
        reads_input: whether `forward` wants the layer's input `x (b, i, e)` as its third argument.
        reads_query_start: whether its rows depend on where the queries start, as those of a table
            for the offsets of a call do: called with `query_start=`, the position of the first
            query, or None where the queries are the last of the keys' positions.
        reads_key_start: whether it changes the keys by their positions: called with `key_start=`
            where the keys are some of a sequence that others hold too. What does not read it leaves
            the keys as they are, and does to a query the same whatever keys there are.
        reads_shape: whether it is made for a grid: on a map called with the map's sizes, `shape=`.
        reads_query_shape: whether the queries may lie on another grid than the keys: called with
            `query_shape=` too.
        shift_invariant: whether positions may be counted from any token: the scores depend on
            offsets and contents, neither on where the keys begin nor on how many there are. If so,
            the cache of a layer with a window may drop the first keys.
        keeps_content: whether the queries and keys that it returns hold no positions where those
            that it is given hold none. What a later scheme of a `Compose` makes of others depends
            on where they are.
        reads_content: whether its terms, or the queries and keys that it returns, depend on those
            that it is given.
        only_products_hold: whether only the products of the queries and keys that it returns are
            what it says, so that no later scheme may read them.
        attention_scale: the scale that the attention must have for the scheme to be what it says;
            None: any, or `1 / sqrt(d)` and no other where `assumes_default_scale`.
        assumes_default_scale: whether it divides by `1 / sqrt(d)`, with the d of each call.

    >>> class Fading(Position):
    ...     shift_invariant = True
    ...     def forward(self, q, k):
    ...         rows = -torch.arange(9.0, device=q.device).flip(0)[None]  # offsets -8..0
    ...         return q, k, Terms(bias=OffsetTable(rows.to(q.dtype), first=-8))
    >>> Fading().logits(torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 3, 4))
    tensor([[[[-1.,  0.,  0.],
              [-2., -1.,  0.]]]])
    """

    reads_input: bool = False
    reads_query_start: bool = False
    reads_key_start: bool = False
    reads_shape: bool = False
    reads_query_shape: bool = False
    shift_invariant: bool = False
    keeps_content: bool = False
    reads_content: bool = True
    only_products_hold: bool = False
    attention_scale: float | None = None
    assumes_default_scale: bool = False

    def reset_parameters(self) -> None:
        """Draw the scheme's own parameters anew; modules that it was given keep theirs."""

    def head_axes(self) -> dict[str, int] | None:
        """The axis of the heads of each parameter that differs from head to head.

        Where heads are cut among devices, a scheme that says so is called with some of the heads
        and their parts of these parameters, and its `heads` is as many. None: it is to be called
        with all heads.
        """
        return None

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
            scale: of the attention; None means the `attention_scale`, or else `1 / sqrt(d)`.
            query_start: position of the first query; None means that the queries are the last.

        Raises:
            ValueError: if the scheme reads x and none is given, or needs another scale.
        """
        name = f"{type(self).__name__}.logits"
        if x is None and self.reads_input:
            raise ValueError(f"{name}: x must be given, as the scheme reads it, got None")
        scale = resolve_scale(name, self, scale, width=q.shape[3])
        new_q, new_k, terms = apply_position(self, q, k, x, query_start=query_start)
        added = relative_logits(new_q, new_k, terms, scale=scale, query_start=query_start)
        if new_q is q and new_k is k:
            return added
        scale = scale_or_default(scale, q.shape[3])
        return added + scale * (_content_scores(new_q, new_k) - _content_scores(q, k))


def _content_scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.repeat_interleave(q.shape[1] // k.shape[1], dim=1).mT


class BiasPosition(Position):
    """A scheme whose only term is a bias, the same whatever the tokens are.

    Subclasses give `table(i, j)`. One with a `forward` of its own takes `query_start=` as well, or
    says `reads_query_start = False`.

    >>> class Log(BiasPosition):
    ...     def table(self, i, j):
    ...         distance = torch.arange(1 - j, i).abs()  # the offsets 1 - j..i - 1
    ...         return OffsetTable(-distance.float().log1p()[None], first=1 - j)
    >>> Log().dense(2, 3)
    tensor([[[-0.6931,  0.0000, -0.6931],
             [-1.0986, -0.6931,  0.0000]]])
    """

    reads_query_start: bool = True
    shift_invariant: bool = True
    keeps_content: bool = True
    reads_content: bool = False

    def table(self, i: int, j: int) -> OffsetTable:
        """The bias that `i` queries, the last of `j` positions, need at least: `1 - j..i - 1`.

        Args:
            i: number of queries, from 1 to `j`.
            j: number of keys. Where the queries of a call are not its last positions, both are
                those of a call that has all its offsets.
        """
        raise NotImplementedError(f"{type(self).__name__}: must have a method table(i, j)")

    def forward(
        self,
        q: Float[Tensor, "b h i d"],
        k: Float[Tensor, "b g j d"],
        *,
        query_start: int | None = None,
    ) -> tuple[Float[Tensor, "b h i d"], Float[Tensor, "b g j d"], Terms | GridTerms]:
        """`q` and `k` unchanged, and the bias.

        Args:
            q: queries.
            k: keys.
            query_start: position of the first query; None means that the queries are the last.

        Raises:
            ShapeError: if `q` has another number of heads than the table, unless that has one.
            TypeError: if `table` returns no `OffsetTable`.
            ValueError: if `query_start` is no integer.
        """
        name = type(self).__name__
        check_floating(name, "q", q, "b h i d")
        check_floating(name, "k", k, "b g j d")
        i, j = q.shape[2], k.shape[2]
        table = self._table_from(start_of_queries(name, query_start, i, j), i, j)
        check_queries(name, q, table.rows.shape[0])
        return q, k, Terms(bias=table)

    def dense(self, i: int, j: int | None = None) -> Float[Tensor, "h i j"]:
        """The bias of `i` queries, the last of `j` positions (None: `i`), as a plain tensor.

        Args:
            i: number of queries.
            j: number of keys.

        Raises:
            ValueError: if a number is no integer or negative.
        """
        name = f"{type(self).__name__}.dense"
        i = check_count(name, "i", i, least=0)
        j = i if j is None else check_count(name, "j", j, least=0)
        table = self._table_from(j - i, i, j)
        empty = table.rows.new_zeros(1, table.rows.shape[0], 1, 1)
        queries, keys = (empty.expand(-1, -1, count, -1) for count in (i, j))
        return relative_logits(queries, keys, Terms(bias=table), scale=1.0)[0]

    def _table_from(self, start: int, i: int, j: int) -> OffsetTable:
        """The table of `i` queries from position `start` on."""
        # `sym_max`, since lengths may be symbols of `torch.compile`.
        last = cast(int, torch.sym_max(j - start, 1))
        table = self.table(last, cast(int, torch.sym_max(start + i, last)))
        if not isinstance(table, OffsetTable):
            name = type(self).__name__
            raise TypeError(f"{name}: table must return an OffsetTable, got {one_line(table)}")
        return table
