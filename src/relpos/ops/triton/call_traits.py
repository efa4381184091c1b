"""What of a call decides for what its kernels are compiled, besides lengths and strides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["CallTraits", "GridShape", "MaskTraits"]

_MOST_MULTIPLIED = 128  # numbers for coordinates


@dataclass(frozen=True)
class GridShape:
    """The grid of a call.

    Args:
        key_grid: tokens along each axis among the keys.
        query_grid: the same among the queries.
        prefix: tokens before the grid.
    """

    key_grid: tuple[int, ...]
    query_grid: tuple[int, ...]
    prefix: int


class MaskTraits(NamedTuple):
    """What kernels are compiled for of a mask, or of none.

    Args:
        kind: "none", "boolean" or "additive".
        has_i: whether it has an axis of queries.
        has_j: whether it has an axis of keys.
    """

    kind: str
    has_i: bool
    has_j: bool

    @classmethod
    def of(cls, mask: Tensor | None) -> MaskTraits:
        """The traits of a mask `(b or 1, h or 1, i or 1, j or 1)`."""
        if mask is None:
            return cls("none", False, False)
        kind = "boolean" if mask.dtype == torch.bool else "additive"
        return cls(kind, mask.shape[2] > 1, mask.shape[3] > 1)


class CallTraits(NamedTuple):
    """As `kernel_args.Specialization` has them, by the same names.

    Args:
        widths: of `q`, of what is dotted with the table of keys, and of `v`.
        tables: names of those that there are.
        grid: of the tokens; None for a sequence.
        mask: of the call.
        row_tile_width: places of a tile that is one row of the grid, where kernels can take such
            tiles; or None.
        scales_last: whether scores can stay unscaled, whatever the tile; if it is a row of a grid,
            they can besides (`Specialization.scale_last`).
    """

    widths: tuple[int, int, int]
    tables: tuple[str, ...]
    grid: GridShape | None
    mask: MaskTraits
    row_tile_width: int | None
    scales_last: bool
    bias_over_scale: bool
    has_q_rel: bool
    is_causal: bool
    has_narrow_band: bool
    left_sees_ahead: bool
    has_documents: bool
    has_key_ranges: bool
    has_axis_windows: bool
    has_min_offset: bool
    has_max_offset: bool
    has_softcap: bool
    has_dropout: bool
    has_dropout_origin: bool
    has_key_axis_logits: bool
    has_query_axis_logits: bool
    has_joint_bias: bool
    has_axis_weights: bool

    @property
    def num_axis_numbers(self) -> int:
        """Numbers of a token for the coordinates of all axes: the most of those that there are."""
        if self.grid is None:
            return 0
        of_keys = self.has_key_axis_logits or self.has_axis_weights
        return max(
            sum(self.grid.key_grid) * of_keys,
            sum(self.grid.query_grid) * self.has_query_axis_logits,
        )

    @property
    def multiplies_axes(self) -> bool:
        """Whether there are such numbers, and few enough for a tile to be multiplied with marks."""
        return 0 < self.num_axis_numbers <= _MOST_MULTIPLIED
