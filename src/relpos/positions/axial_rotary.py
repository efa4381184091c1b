"""Rotary positions on an image, a video or any other grid: each axis turns its own pairs.

    s_ij = scale * sum_a q_i[a] . R_(j_a - i_a) k_j[a]

- Source: the axial form of rotary positions (Heo et al. 2024, section 3.2, "RoPE-Axial"), as in
  Qwen2-VL's images and SAM 3; SAM 2, EVA-02, DINOv3 and Pixtral have others of the family (below).
- With `n` axes there are `head_dim / (2 n)` pairs for each, the first axis first; pair `c` of an
  axis turns by `y theta^(-2c n/head_dim)` at coordinate `y`. Coordinates are whole steps from 0;
  where queries are pooled, steps of the finer of the two grids.
- Pairs: as in `Rotary`, over the whole width: half the width apart (Qwen2-VL, DINOv3) or beside
  each other with `interleaved=True` (SAM 2 and 3).
- Prefix tokens (class tokens) are not turned.
- Scale: that of the attention.
- Beyond: every coordinate has its own angles; nothing is resized for another grid.
- Elsewhere: the authors' code, SAM 2 and Llama 4 have the columns' pairs before the rows'. EVA-02
  scales coordinates to the grid of its training. DINOv3 counts a coordinate from -1 to 1 over the
  image, times 2 pi. Pixtral has the even frequencies of the whole width down and the odd ones
  across.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from ..checks import check_count, check_flags
from ..offsets import axis_coordinates
from ..terms import Terms
from .angles import angles_at, frequencies
from .grid_position import GridPosition
from .rotary import check_theta
from .rotation import rotate

__all__ = ["AxialRotary"]


class AxialRotary(GridPosition):
    """`q` and `k` turned by angles that grow with the coordinates on a grid.

    Args:
        head_dim: width of one head, a multiple of twice the number of axes.
        shape: the keys' grid, e.g. `(height, width)`; tokens come in row-major order. Another one
            may be given in the call: nothing is made for this one.
        theta: the base of the frequencies; vision models have 100 to 10000.
        interleaved: whether pairs lie beside each other, or half the width apart.
        query_shape: the queries' grid; None means that of the keys.
        prefix: number of tokens before the grid (class tokens), which are not turned.

    Raises:
        ValueError: if a size is out of range, or the axes do not divide the width.

    >>> position = AxialRotary(8, (2, 3))
    >>> q = k = torch.ones(1, 1, 6, 8)
    >>> position(q, k)[2].tables
    {}
    """

    reads_query_shape: ClassVar[bool] = True

    def __init__(
        self,
        head_dim: int,
        shape: tuple[int, ...],
        theta: float = 10000.0,
        *,
        interleaved: bool = False,
        query_shape: tuple[int, ...] | None = None,
        prefix: int = 0,
    ) -> None:
        super().__init__(shape, query_shape=query_shape, prefix=prefix)
        check_flags("AxialRotary", interleaved=interleaved)
        self.head_dim = check_count("AxialRotary", "head_dim", head_dim)
        axes = len(self.shape)
        if self.head_dim % (2 * axes):
            raise ValueError(
                f"AxialRotary: head_dim must be a multiple of {2 * axes}, a pair for each of the "
                f"{axes} axes, got {self.head_dim}"
            )
        self.theta = check_theta("AxialRotary", theta)
        self.interleaved = interleaved

    def forward(
        self,
        q: Float[Tensor, "b h i d"],
        k: Float[Tensor, "b g j d"],
        *,
        shape: tuple[int, ...] | None = None,
        query_shape: tuple[int, ...] | None = None,
    ) -> tuple[Float[Tensor, "b h i d"], Float[Tensor, "b g j d"], Terms]:
        """`q` and `k` turned, in their dtype, and no terms.

        Args:
            q: queries, the prefix and then their grid.
            k: keys, likewise.
            shape: another grid of the keys; None means the one this was made for.
            query_shape: another grid of the queries; None means that of the keys if `shape` is
                given.

        Raises:
            ShapeError: if `q` or `k` has another width or number of tokens.
            ValueError: if a shape has another number of axes.
        """
        grids = self._grids(shape, query_shape)
        self._check_tokens(q, k, grids, width=self.head_dim)
        of_queries, of_keys = grids.query_grid, grids.shape
        q, k = (
            rotate(x, self._angles(own, other, x.device), interleaved=self.interleaved)
            for x, own, other in ((q, of_queries, of_keys), (k, of_keys, of_queries))
        )
        return q, k, Terms()

    def extra_repr(self) -> str:
        """Width, grids, base and non-default arguments."""
        plain = f"head_dim={self.head_dim}, shape={self.shape}, theta={self.theta:g}"
        pairs = ", interleaved=True" if self.interleaved else ""
        same = self.query_shape == self.shape
        pooled = "" if same else f", query_shape={self.query_shape}"
        return plain + pairs + pooled + (f", prefix={self.prefix}" if self.prefix else "")

    def _angles(
        self, own: tuple[int, ...], other: tuple[int, ...], device: torch.device
    ) -> Float[Tensor, "n c"]:
        """The angles of each token of a grid, in steps of the finer of the two grids."""
        inv_freq = frequencies(self.theta, self.head_dim // len(own), device=device)
        parts = []
        for axis, (size, across) in enumerate(zip(own, other, strict=True)):
            coordinates = axis_coordinates(size, max(size, across), device=device)
            ones = [1] * len(own)
            ones[axis] = size
            part = angles_at(coordinates, inv_freq).view(*ones, -1)
            parts.append(part.expand(*own, -1))
        angles = torch.cat(parts, dim=-1).flatten(0, -2)
        return pad(angles, (0, 0, self.prefix, 0)) if self.prefix else angles
