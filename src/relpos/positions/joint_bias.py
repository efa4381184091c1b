"""What the schemes share whose one term is a bias over the offsets along all axes at once."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from ..checks import check_count
from ..ops import relative_logits
from ..terms import GridTerms
from .grid_position import GridPosition
from .quantized import device_of

__all__ = ["JointBiasPosition"]


class JointBiasPosition(GridPosition):
    """A scheme for a window with one number per head for each pair of offsets (triple, ...).

    Subclasses give `_bias_for(shape, device, dtype)`.

    Args:
        heads: query heads; 1 is shared by all.
        shape: the window, e.g. `(height, width)`; its tokens come in row-major order.
        prefix: number of tokens before the window (class tokens), which have no bias.

    Raises:
        ValueError: if a size is out of range.
    """

    keeps_content: bool = True
    reads_content: bool = False

    def __init__(self, heads: int, shape: tuple[int, ...], *, prefix: int) -> None:
        super().__init__(shape, prefix=prefix)
        self.heads = check_count(type(self).__name__, "heads", heads)

    def forward(
        self,
        q: Float[Tensor, "b h i d"],
        k: Float[Tensor, "b g j d"],
        *,
        shape: tuple[int, ...] | None = None,
    ) -> tuple[Float[Tensor, "b h i d"], Float[Tensor, "b g j d"], GridTerms]:
        """`q` and `k` unchanged, and the bias.

        Args:
            q: queries, the prefix and then the window.
            k: keys, likewise.
            shape: another window; None means the one this was made for.

        Raises:
            ShapeError: if `q` has another number of heads, or `q` or `k` of tokens.
            ValueError: if `shape` has another number of axes.
        """
        grids = self._grids(shape)
        self._check_tokens(q, k, grids, heads=self.heads)
        return q, k, replace(grids, joint_bias=self._bias_for(grids.shape, q.device, q.dtype))

    def dense(
        self, shape: tuple[int, ...] | None = None, *, dtype: torch.dtype | None = None
    ) -> Float[Tensor, "h i j"]:
        """The bias of every pair of tokens, the prefix among them, as a plain tensor.

        Args:
            shape: another window; None means the one this was made for.
            dtype: what modules take that compute the bias, if they were quantized and nothing says
                it; None: torch's default.

        Raises:
            ValueError: if `shape` has another number of axes.
        """
        grids = self._grids(shape)
        dtype = dtype or torch.get_default_dtype()
        joint_bias = self._bias_for(grids.shape, device_of(self), dtype)
        tokens = joint_bias.new_zeros(1, self.heads, grids.tokens, 1)
        return relative_logits(tokens, tokens, replace(grids, joint_bias=joint_bias))[0]

    def _bias_for(
        self, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype
    ) -> Float[Tensor, "h ..."]:
        """The bias of a window, `2 size - 1` numbers along each axis.

        Args:
            shape: the window.
            device: of the parameters, when their modules are called.
            dtype: of the queries, for modules whose weights do not say it.
        """
        raise NotImplementedError
