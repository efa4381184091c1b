"""Learned rows for another grid than the one they were learned on: interpolated between offsets.

Row `n` of `r` rows covers `n / r` to `(n + 1) / r` of the whole and lies in the middle of that, so
that both tables cover the same and offset 0 stays in the middle (`F.interpolate` with
`align_corners=False`, as vision checkpoints are resized: Li et al. 2022, "ViTDet", linear per axis;
Liu et al. 2021, bicubic over both). Offset `o` on a grid of `m` reads what offset
`o (2 n - 1) / (2 m - 1)` had on one of `n`: about the same share of the grid, not the same number
of steps.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import interpolate

from ..autocast import without_autocast
from ..checks import check_floating, check_sizes
from ..errors import ShapeError

__all__ = ["resize_rows"]


def resize_rows(
    rows: Float[Tensor, "h ..."],
    counts: tuple[int, ...],
    *,
    mode: Literal["linear", "cubic"] = "linear",
) -> Float[Tensor, "h ..."]:
    """`rows` with `counts` rows along the axes after the first, interpolated along each.

    Equals `F.interpolate` with `mode` "linear" or "bicubic" and `align_corners=False`; as a product
    with its weights, whose gradients are the same bits each time on every device.

    Args:
        rows: `(h, r, d)` or `(h, r)` for one count, `(h, r, s)` for two, and so on.
        counts: rows wanted along each axis after the first; `2 n - 1` for an axis of size `n`.
        mode: straight lines or cubics (Keys 1981, with a = -0.75) between the rows.

    Raises:
        ShapeError: if `rows` has fewer axes than counts, no row along one, or other numbers than
            floating point.
        ValueError: if a count is below 1, or `mode` is another.

    >>> resize_rows(torch.tensor([[0.0, 1.0, 2.0]]), (5,))
    tensor([[0.0000, 0.4000, 1.0000, 1.6000, 2.0000]])
    """
    if mode not in ("linear", "cubic"):
        raise ValueError(f"resize_rows: mode must be 'linear' or 'cubic', got {mode!r}")
    counts = check_sizes("resize_rows", "counts", counts)
    check_floating("resize_rows", "rows", rows)
    if rows.ndim <= len(counts):
        raise ShapeError(
            f"resize_rows: rows must have an axis for the heads and one for each of {counts}, "
            f"got {tuple(rows.shape)}"
        )
    if 0 in rows.shape[1 : len(counts) + 1]:
        raise ShapeError(f"resize_rows: rows must be at least one, got {tuple(rows.shape)}")
    # Not in autocast's dtype either: a checkpoint would be resized to half of its digits.
    with without_autocast(rows):
        return _resized(rows, counts, mode)


def _resized(rows: Tensor, counts: tuple[int, ...], mode: str) -> Tensor:
    work = torch.promote_types(rows.dtype, torch.float32)
    resized = rows
    for axis, count in enumerate(counts, start=1):
        # A symbol is not asked whether it is the same: the answer would become a condition.
        if isinstance(count, torch.SymInt) or resized.shape[axis] != count:
            weights = _weights(resized.shape[axis], count, mode, rows.device, work)
            resized = (resized.to(work).movedim(axis, -1) @ weights).movedim(-1, axis)
    return resized.to(rows.dtype)


def _weights(
    old: int, new: int, mode: str, device: torch.device, dtype: torch.dtype
) -> Float[Tensor, "old new"]:
    """The share of each old row in each new one."""
    identity = torch.eye(old, device=device, dtype=dtype)
    if mode == "linear":
        return interpolate(identity[None], size=(new,), mode="linear")[0]
    image = identity[None, :, :, None]
    return interpolate(image, size=(new, 1), mode="bicubic")[0, :, :, 0]
