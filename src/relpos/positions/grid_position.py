"""What schemes for a grid of tokens share: its sizes, and those of another one in a call."""

from __future__ import annotations

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from ..checks import check_count, check_floating, check_queries, check_sizes
from ..terms import GridTerms
from .base import Position

__all__ = ["GridPosition"]


class GridPosition(Position):
    """A scheme for the tokens of a grid, in row-major order, with others before it.

    Args:
        shape: the keys' grid, e.g. `(height, width)`.
        query_shape: the queries' grid; None means that of the keys.
        prefix: number of tokens before the grid (class tokens), among queries and among keys.

    Raises:
        ValueError: if a size is out of range, or the grids have different numbers of axes.
    """

    reads_shape: ClassVar[bool] = True

    def __init__(
        self,
        shape: tuple[int, ...],
        *,
        query_shape: tuple[int, ...] | None = None,
        prefix: int = 0,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        self.shape = check_sizes(name, "shape", shape)
        self.query_shape = self.shape
        if query_shape is not None:
            self.query_shape = check_sizes(name, "query_shape", query_shape, len(self.shape))
        self.prefix = check_count(name, "prefix", prefix, least=0)

    def _grids(
        self, shape: tuple[int, ...] | None, query_shape: tuple[int, ...] | None = None
    ) -> GridTerms:
        """The grids of a call, as terms that add nothing.

        Args:
            shape: of the keys; None means the one that this was made for.
            query_shape: of the queries; None means the one that this was made for, or that of the
                keys if `shape` is given.

        Raises:
            ValueError: if a shape has another number of axes, or a size below 1.
        """
        name, axes = type(self).__name__, len(self.shape)
        if query_shape is None:
            query_shape = self.query_shape if shape is None else shape
        shape = check_sizes(name, "shape", self.shape if shape is None else shape, axes)
        query_shape = check_sizes(name, "query_shape", query_shape, axes)
        return GridTerms(shape, query_shape=query_shape, prefix=self.prefix)

    def _check_tokens(
        self,
        q: Float[Tensor, "b h i d"],
        k: Float[Tensor, "b g j d"],
        grids: GridTerms,
        *,
        heads: int = 1,
        width: int | None = None,
    ) -> None:
        """Raise unless there are as many tokens as on the grids.

        Args:
            q: queries.
            k: keys.
            grids: of the call.
            heads: number of tables; 1 means one for all heads.
            width: d; None means any.

        Raises:
            ShapeError: otherwise, or if heads or widths do not fit.
        """
        name = type(self).__name__
        check_queries(name, q, heads, width=width, tokens=grids.query_tokens)
        sizes = {"j": grids.tokens} | ({} if width is None else {"d": width})
        check_floating(name, "k", k, "b g j d", sizes)
