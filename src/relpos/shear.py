"""The skew of Huang et al. (2018, section 3.4.1) as a strided view, and its adjoint.

Scores against a table come as `x[a, n]`: row `a` is a query, column `n` an offset. Attention wants
`y[a, c]`: column `c` a key. Each further query sees the table one offset earlier, so

    y[a, c] = x[a, c + (m - 1) - a]          x (..., m, m + n - 1)  ->  y (..., m, n)

which is a view of `x` with row stride `w - 1` instead of `w`: no padding, no copy, no index.
Huang's pad-reshape-slice holds the same numbers on and below the diagonal; above it, it holds
numbers of the *next* query, harmless only under a causal mask. Here `skew` fills those, and the
bidirectional form (`relative_to_absolute`) takes the full table and has none.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from .checks import check_floating, check_number
from .errors import ShapeError

__all__ = ["absolute_to_relative", "relative_to_absolute", "shear_view", "skew"]


def shear_view(x: Float[Tensor, "*batch m w"], columns: int) -> Float[Tensor, "*batch m n"]:
    """`y[a, c] = x[a, c + (m - 1) - a]` for the first `columns` columns, sharing memory with `x`.

    Not differentiable by itself; `x` must be contiguous in its last two axes and
    `w >= m + columns - 1`, both for the caller to see to.
    """
    rows, width = x.shape[-2:]
    return x.as_strided(
        (*x.shape[:-1], columns),
        (*x.stride()[:-2], width - 1, 1),
        x.storage_offset() + rows - 1,
    )


def relative_to_absolute(x: Float[Tensor, "*batch i w"]) -> Float[Tensor, "*batch i j"]:
    """`y[a, c] = x[a, c + (i - 1) - a]`: scores by offset become scores by key, bidirectionally.

    With query 0 at the position of key 0, column `n` of `x` belongs to offset `n - (i - 1)`. (AI
    Summer's and lucidrains' function of this name takes `w = 2i - 1` only.)

    Args:
        x: any leading axes; `w = i + j - 1` offsets, so `w >= i`.

    Returns:
        `(..., i, j)` with `j = w - i + 1`; a view of `x` where `x` is contiguous.

    Raises:
        ShapeError: if `x` has another dtype or layout, fewer than two axes, no query, or `w < i`.
        TypeError: if `x` is no tensor.

    >>> import torch
    >>> relative_to_absolute(torch.tensor([[-1., 0., 1.], [-1., 0., 1.]]))
    tensor([[ 0.,  1.],
            [-1.,  0.]])
    """
    check_floating("relative_to_absolute", "x", x)
    if x.ndim < 2 or not 1 <= x.shape[-2] <= x.shape[-1]:
        raise ShapeError(
            "relative_to_absolute: x must be (..., i, w) with w = i + j - 1 >= i >= 1, "
            f"got {tuple(x.shape)}"
        )
    rows, width = x.shape[-2:]
    if rows == 1:
        return x
    # Chained views, where `shear_view` is one `as_strided`: they differentiate, export and map.
    shifted = x.flatten(-2)[..., rows - 1 : rows * width - 1]
    return shifted.unflatten(-1, (rows, width - 1))[..., : width - rows + 1]


def absolute_to_relative(y: Float[Tensor, "*batch i j"]) -> Float[Tensor, "*batch i w"]:
    """`x[a, c + (i - 1) - a] = y[a, c]`, zeros elsewhere: the adjoint of `relative_to_absolute`.

    Args:
        y: numbers by query and key, any leading axes.

    Returns:
        The same by query and offset, `(..., i, i + j - 1)`.

    Raises:
        ShapeError: if `y` has another dtype or layout, fewer than two axes, or an empty one among
            the last two.
        TypeError: if `y` is no tensor.

    >>> import torch
    >>> absolute_to_relative(torch.tensor([[0., 1.], [-1., 0.]]))
    tensor([[ 0.,  0.,  1.],
            [-1.,  0.,  0.]])
    """
    check_floating("absolute_to_relative", "y", y)
    if y.ndim < 2 or 0 in y.shape[-2:]:
        raise ShapeError(
            "absolute_to_relative: y must be (..., i, j) with i >= 1 and j >= 1, "
            f"got {tuple(y.shape)}"
        )
    rows, columns = y.shape[-2:]
    x = y.new_zeros(*y.shape[:-1], rows + columns - 1)
    relative_to_absolute(x).copy_(y)
    return x


def skew(x: Float[Tensor, "*batch i j"], fill: float = 0.0) -> Float[Tensor, "*batch i j"]:
    """`y[a, c] = x[a, c + (i - 1) - a]` where the key is not ahead of the query, else `fill`.

    Huang et al. (2018), section 3.4.1: the last column of `x = q E_r^T` is offset 0, the column
    before it offset -1. The queries are the last `i` of the `j` positions. Unlike the paper's
    pad-and-reshape, nothing above the diagonal comes from another query's row.

    Args:
        x: any leading axes; one column for each offset `-(j - 1)..0`.
        fill: the number above the diagonal, where `x` has no offset.

    Raises:
        ShapeError: if `x` has another dtype or layout, fewer than two axes, or an empty one among
            the last two.
        TypeError: if `x` is no tensor, or `fill` no number.

    >>> import torch
    >>> skew(torch.tensor([[-2., -1., 0.], [-2., -1., 0.], [-2., -1., 0.]]), fill=9)
    tensor([[ 0.,  9.,  9.],
            [-1.,  0.,  9.],
            [-2., -1.,  0.]])
    """
    check_floating("skew", "x", x)
    fill = check_number("skew", "fill", fill)
    if x.ndim < 2 or 0 in x.shape[-2:]:
        raise ShapeError(
            f"skew: x must be (..., i, j) with i >= 1 and j >= 1, got {tuple(x.shape)}"
        )
    return relative_to_absolute(pad(x, (0, x.shape[-2] - 1), value=fill))
