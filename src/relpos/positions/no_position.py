"""No positions, NoPE (Kazemnejad et al. 2023; Haviv et al. 2022): the scores as they are.

    s_ij = scale * q_i . k_j

A causal mask alone tells a deep decoder about order; without one, attention is blind to it. A layer
takes `position=None` for the same; this is for where a module is wanted: one of several in a sweep,
some layers of a model (Llama 4, SmolLM3), a part of `Compose`.
"""

from __future__ import annotations

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from ..checks import check_floating
from ..terms import Terms
from .base import Position

__all__ = ["NoPosition"]


class NoPosition(Position):
    """`q`, `k` and no terms.

    >>> import torch
    >>> q = k = torch.ones(1, 1, 3, 2)
    >>> same, _, terms = NoPosition()(q, k)
    >>> same is q, terms.tables
    (True, {})
    """

    # Wherever pooled queries lie, nothing depends on it.
    reads_query_shape: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = True
    keeps_content: ClassVar[bool] = True
    reads_content: ClassVar[bool] = False

    def forward(
        self,
        q: Float[Tensor, "b h i d"],
        k: Float[Tensor, "b g j d"],
        *,
        query_shape: tuple[int, ...] | None = None,
    ) -> tuple[Float[Tensor, "b h i d"], Float[Tensor, "b g j d"], Terms]:
        """`q` and `k` unchanged, and no terms.

        Args:
            q: queries.
            k: keys.
            query_shape: the queries' grid, which does not matter.

        Raises:
            ShapeError: if `q` or `k` has other axes, or is not floating point.
        """
        check_floating("NoPosition", "q", q, "b h i d")
        check_floating("NoPosition", "k", k, "b g j d")
        return q, k, Terms()

    def head_axes(self) -> dict[str, int]:
        """There is no parameter."""
        return {}
