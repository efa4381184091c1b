"""A grid's joint bias written out for all pairs of tokens, where that is less than the queries.

Windows of images are so many and so small that a number for each pair of one window's tokens, which
all share, takes less memory than all queries. As a mask, kernels read it row by row, and its
gradient is a sum over the sequences; from the table itself they read a number here and there.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from torch import Tensor
from torch.nn.functional import pad

from ...terms import GridTerms, Terms
from ..inputs import Inputs, wide_dtype
from ..transforms import is_traced

__all__ = ["with_dense_bias"]

_ALIGNED = 16  # numbers


def with_dense_bias(inputs: Inputs) -> Inputs:
    """The call with its joint bias as a mask, where that has no more bytes than `q`; or the same.

    Not in a traced call, which is for other numbers of sequences too.
    """
    terms = inputs.terms
    if not isinstance(terms, GridTerms) or terms.joint_bias is None or is_traced():
        return inputs
    # A mask is added after the cap.
    if inputs.mask is not None or inputs.softcap is not None:
        return inputs
    q, bias = inputs.q, terms.joint_bias
    wide = wide_dtype(q)
    tokens = terms.prefix + prod(terms.shape)
    if bias.shape[0] * tokens**2 * wide.itemsize > q.numel() * q.element_size():
        return inputs
    mask = _of_pairs(bias.to(wide), terms.shape, terms.prefix).unsqueeze(0)
    has_others = bool(inputs.window) or inputs.axis_ranges is not None
    has_others |= any(axis.tensors for axis in terms.axes)
    others = replace(terms, joint_bias=None) if has_others else Terms()
    return replace(inputs, terms=others, mask=mask)


def _of_pairs(bias: Tensor, shape: tuple[int, ...], prefix: int) -> Tensor:
    """`(h or 1, i, j)`: the entry of each pair, and zeros for tokens before the grid."""
    axes = range(1, len(shape) + 1)
    for axis, size in zip(axes, shape, strict=True):
        # Element t of the part that begins at s is entry s + t: offset t - i + size - 1 for
        # s = size - 1 - i.
        bias = bias.unfold(axis, size, 1)
    tokens = prod(shape)
    of_grid = bias.flip(tuple(axes)).reshape(-1, tokens, tokens)
    # Rows of such a length that what is read of them at once lies at a multiple of its size.
    beyond = -(prefix + tokens) % _ALIGNED
    return pad(of_grid, (prefix, beyond, prefix, 0))[..., : prefix + tokens]
