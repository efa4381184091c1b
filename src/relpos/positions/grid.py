"""Relative keys on an image, a video or any other grid: one table per axis, their scores added.

    s_ij = scale * (q_i . k_j + q_i . K_h[j_h - i_h] + q_i . K_w[j_w - i_w])

- Source: Bottleneck Transformers (Srinivas et al. 2021, section 3 and figure 4); ViTDet (Li et al.
  2022) and SAM (Kirillov et al. 2023); MViTv2 (Li et al. 2022, section 4.1), whose queries are
  pooled. Stand-alone self-attention (Ramachandran et al. 2019, eq. 3) concatenates a row and a
  column embedding of half the width instead, so that each axis is dotted with its own part of the
  query: `concatenated=True`.
- Offset: key minus query along each axis, in steps of the finer of the two grids; row `n` belongs
  to offset `n - (size - 1)`. Between two rows (queries pooled 7 to 3, say) it is interpolated.
- Rows: `2 * size - 1` for each axis, height first, with the size of the finer grid.
- Scale: `1 / sqrt(d)` on content and position (Bottleneck Transformers). The code of SAM, ViTDet
  and MViTv2 leaves the position unscaled: `scaled=False`, where rows are divided by the scale and
  layers take it from here (`attention_scale`). Ramachandran et al.'s eq. 3 has no scale at all:
  `concatenated=True, scale=1`.
- Beyond the table: for another grid the rows are resized, linearly as in SAM and ViTDet; with
  `resize=False` each keeps its offset and further ones clamp.
- Elsewhere: `rel_pos_h` and `rel_pos_w` of SAM, ViTDet and MViTv2, `(2 n - 1, d)`, count query
  minus key and are unscaled: read backwards, `rel_pos_h.flip(0)[None]` is `keys.0` and
  `rel_pos_w.flip(0)[None]` is `keys.1`, with `scaled=False`. Where the keys are the coarser side,
  of size `m` against `n`, theirs has offset 0 in row `(m - 1) * n / m`, not in the middle: move
  it there first. They cut an offset between two rows down to an integer. `rel_height` and
  `rel_width` of Bottleneck Transformers count as here, `keys.0 = rel_height[None]`; so do timm's
  `height_rel` and `width_rel`, which are unscaled by default. AI Summer's `RelPosEmb2D` adds the
  rows of another token and needs square maps.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..checks import check_count, check_dtype, check_flags, check_scale
from ..terms import GridTerms, OffsetTable, Terms
from .fsdp import copied_under_fsdp
from .grid_position import GridPosition
from .resizing import resize_rows
from .scales import scale_or_default

__all__ = ["Grid"]


class Grid(GridPosition):
    """`K_a` with one row for each offset `-(size - 1)..size - 1` along each axis of a grid.

    Args:
        head_dim: width of one head.
        shape: the grid of the keys, e.g. `(height, width)`; tokens come in row-major order.
        heads: 1, one table per axis that all heads share, or one for each query head.
        values: whether there are tables added to the values too; needs values of `head_dim`.
        scaled: whether the position is scaled as the content is. If not, rows are divided by the
            scale.
        concatenated: whether the axes share the query's width, each dotted with its own part.
        query_shape: the grid of the queries; None means that of the keys.
        prefix: number of tokens before the grid (class tokens), to which no table applies.
        resize: whether the rows are resized for another grid; if not, they keep their offsets.
        scale: the attention's scale; None means `1 / sqrt(head_dim)` where not `scaled`, and else
            any.
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        ValueError: if a size is out of range, `concatenated` does not divide the width, or the
            scale is not positive.

    >>> position = Grid(32, (5, 7))
    >>> [tuple(rows.shape) for rows in position.keys]
    [(1, 9, 32), (1, 13, 32)]
    >>> q = k = torch.zeros(1, 4, 35, 32)
    >>> position(q, k)[2].shape, position(q[:, :, :12], k[:, :, :12], shape=(3, 4))[2].shape
    ((5, 7), (3, 4))
    """

    reads_query_shape: ClassVar[bool] = True

    def __init__(
        self,
        head_dim: int,
        shape: tuple[int, ...],
        heads: int = 1,
        *,
        values: bool = False,
        scaled: bool = True,
        concatenated: bool = False,
        query_shape: tuple[int, ...] | None = None,
        prefix: int = 0,
        resize: bool = True,
        scale: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(shape, query_shape=query_shape, prefix=prefix)
        check_flags("Grid", values=values, scaled=scaled, concatenated=concatenated, resize=resize)
        self.head_dim = check_count("Grid", "head_dim", head_dim)
        self.heads = check_count("Grid", "heads", heads)
        check_dtype("Grid", dtype)
        axes = len(self.shape)
        if concatenated and self.head_dim % axes:
            raise ValueError(
                f"Grid: head_dim must be a multiple of the {axes} axes if they are concatenated, "
                f"got {self.head_dim}"
            )
        self.scaled, self.concatenated, self.resize = scaled, concatenated, resize
        self.attention_scale = check_scale("Grid", scale)
        if not scaled:
            self.attention_scale = scale_or_default(self.attention_scale, self.head_dim)

        def tables(width: int) -> _Tables:
            return _Tables(
                torch.empty(self.heads, 2 * max(sizes) - 1, width, device=device, dtype=dtype)
                for sizes in zip(self.shape, self.query_shape, strict=True)
            )

        self.keys = tables(self.head_dim // axes if concatenated else self.head_dim)
        self.values = tables(self.head_dim) if values else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the rows from a normal distribution around 0.

        Their variance is `1 / head_dim`, that of unscaled keys smaller by as much again: for a
        query of unit variance a relative score is as large as `1 / sqrt(head_dim)` either way.
        """
        for rows in self.keys:
            nn.init.normal_(rows, std=self.head_dim ** (-0.5 if self.scaled else -1.0))
        for rows in self.values or ():
            nn.init.normal_(rows, std=self.head_dim**-0.5)

    def forward(
        self,
        q: Float[Tensor, "b h i d"],
        k: Float[Tensor, "b g j d"],
        *,
        shape: tuple[int, ...] | None = None,
        query_shape: tuple[int, ...] | None = None,
    ) -> tuple[Float[Tensor, "b h i d"], Float[Tensor, "b g j d"], GridTerms]:
        """`q` and `k` unchanged, and the tables of every axis.

        Args:
            q: queries, the prefix and then their grid.
            k: keys, likewise.
            shape: the grid of the keys; None means the one this was made for.
            query_shape: the grid of the queries; None means that of the keys if `shape` is given.

        Raises:
            ShapeError: if `q` or `k` has another width or number of tokens, or `q` another number
                of heads.
            ValueError: if a shape has another number of axes.
        """
        grids = self._grids(shape, query_shape)
        self._check_tokens(q, k, grids, heads=self.heads, width=self.head_dim)
        axes = len(self.shape)
        parts = q.chunk(axes, dim=-1) if self.concatenated else (None,) * axes
        all_keys: Any = self.keys()
        all_values: Any = None if self.values is None else self.values()
        terms = []
        for axis, sizes in enumerate(zip(grids.shape, grids.query_grid, strict=True)):
            keys = self._table(all_keys[axis], max(sizes))
            if not self.scaled:
                keys = keys.map(self._unscaled)
            values = None if all_values is None else self._table(all_values[axis], max(sizes))
            terms.append(Terms(keys=keys, values=values, q_rel=parts[axis]))
        return q, k, replace(grids, axes=tuple(terms))

    def extra_repr(self) -> str:
        """Width, grids, heads, and non-default arguments."""
        plain = f"head_dim={self.head_dim}, shape={self.shape}, heads={self.heads}"
        default_scale = None if self.scaled else scale_or_default(None, self.head_dim)
        options = {
            "values": (self.values is not None, False),
            "scaled": (self.scaled, True),
            "concatenated": (self.concatenated, False),
            "query_shape": (self.query_shape, self.shape),
            "prefix": (self.prefix, 0),
            "resize": (self.resize, True),
            "scale": (self.attention_scale, default_scale),
        }
        changed = [f", {name}={x}" for name, (x, default) in options.items() if x != default]
        return plain + "".join(changed)

    def _unscaled(self, rows: Tensor) -> Tensor:
        return rows / scale_or_default(self.attention_scale, self.head_dim)

    def _table(self, rows: Tensor, size: int) -> OffsetTable:
        """`rows` for an axis whose finer side has size `size`."""
        rows = copied_under_fsdp(self, rows)
        if not self.resize:
            return OffsetTable(rows, -(rows.shape[1] // 2))
        return OffsetTable(resize_rows(rows, (2 * size - 1,)), 1 - size)


class _Tables(nn.ParameterList):
    """Called for its rows: what has weights come and go does so when a module is called."""

    __call__ = nn.Module.__call__  # which a list of parameters refuses

    def forward(self) -> tuple[Tensor, ...]:
        return tuple(self)
