"""Several documents in one row of tokens."""

from __future__ import annotations

import torch
from jaxtyping import Int64, Integer
from torch import Tensor

from .checks import check_count, check_integers, check_shape, one_line

__all__ = ["document_ids"]


def document_ids(cumulative: Integer[Tensor, "_"], length: int) -> Int64[Tensor, "1 j"]:
    """The document of each position of a packed row, for `attention(..., documents=...)`.

    Args:
        cumulative: `(n + 1,)`, the lengths of `n` documents added up, from 0, in tokens:
            `cu_seqlens` of variable-length kernels. Document `m` holds the positions
            `cumulative[m]..cumulative[m + 1] - 1`.
        length: of the row, in tokens; positions after the last document belong to none (-1).

    Raises:
        ShapeError: if `cumulative` has not one axis, or holds no integers.
        TypeError: if it is no tensor.
        ValueError: if `length` is below 1, or `cumulative` does not begin with 0, falls, or ends
            beyond `length` (looked at on the CPU alone).

    >>> document_ids(torch.tensor([0, 2, 5]), 6)
    tensor([[ 0,  0,  1,  1,  1, -1]])
    """
    check_shape("document_ids", "cumulative", cumulative, "n")
    check_integers("document_ids", "cumulative", cumulative)
    length = check_count("document_ids", "length", length)
    # `searchsorted` warns of what is not contiguous.
    cumulative = cumulative.long().contiguous()
    if cumulative.device.type == "cpu" and not torch.compiler.is_compiling():
        _check_adds_up(cumulative, length)
    at = torch.arange(length, device=cumulative.device)
    number = torch.searchsorted(cumulative, at, right=True) - 1
    return number.masked_fill(number >= cumulative.shape[0] - 1, -1).unsqueeze(0)


def _check_adds_up(cumulative: Tensor, length: int) -> None:
    ends = cumulative.tolist()
    if not ends or ends[0] != 0 or ends != sorted(ends) or ends[-1] > length:
        raise ValueError(
            "document_ids: cumulative must begin with 0, never fall, and end at most at "
            f"length={length}, got {one_line(ends)}"
        )
