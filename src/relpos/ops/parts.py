"""Attention over a part of each row's keys, and its gradients: what several devices do at a time.

Of a row whose keys are cut into parts, each part gives an output and two numbers of its softmax,
the largest score and the sum of `exp(score - largest)`. `RowSums` puts them together. Backward of
each part then goes by the numbers over all parts (Liu et al. 2023, appendix A):

    p = exp(s - row_max) / row_sum        delta = dO . o - d_lse        ds = p (dP - delta)

Both numbers are kept, not their log-sum-exp: under an additive mask of -1e9 that has no digits left
for the sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .inputs import wide_dtype

__all__ = ["Part", "RowFlow", "RowSums"]


@dataclass(frozen=True)
class Part:
    """What a part of the keys gives.

    Args:
        output: `(b, h, i, dv)`, in 32 bits where the backend knows it so.
        softmax: `(2, b, h, i)`, the largest score of each row and the sum of
            `exp(score - largest)`; -inf and 0 for a row without a key in this part.
    """

    output: Tensor
    softmax: Tensor


@dataclass(frozen=True)
class RowFlow:
    """What is known of rows over all their keys when a part's gradients are asked for.

    Args:
        output: `(b, h, i, dv)`, in 32 bits at least.
        softmax: `(2, b, h, i)` as in `Part`, but with a sum of 1 for a row without any key.
        d_output: likewise, in the dtype of the call.
        d_lse: `(b, h, i)`, or None.
        whole: of which larger flow these are which rows, None if of none.
    """

    output: Tensor
    softmax: Tensor
    d_output: Tensor
    d_lse: Tensor | None
    whole: tuple[RowFlow, slice] | None = None

    @cached_property
    def delta(self) -> Tensor:
        """`(b, h, i)`: `dO_i . o_i - d_lse_i`."""
        if self.whole is not None:
            flow, rows = self.whole
            return flow.delta[:, :, rows]
        wide = wide_dtype(self.output)
        delta = (self.d_output.to(wide) * self.output.to(wide)).sum(-1)
        return delta if self.d_lse is None else delta - self.d_lse

    def rows(self, first: int, end: int) -> RowFlow:
        """The flow of the rows `first..end-1`."""
        cut = slice(first, end)
        d_lse = None if self.d_lse is None else self.d_lse[:, :, cut]
        softmax = self.softmax[:, :, :, cut]
        output, d_output = self.output[:, :, cut], self.d_output[:, :, cut]
        return RowFlow(output, softmax, d_output, d_lse, (self, cut))


class RowSums:
    """The output and the softmax of rows, as parts of their keys come in, in 32 bits at least.

    Args:
        output: `(b, h, i, dv)`, zeros.
        softmax: `(2, b, h, i)`, -inf and zeros.
    """

    def __init__(self, output: Tensor, softmax: Tensor) -> None:
        self.output, self.softmax = output, softmax

    @classmethod
    def empty(cls, q: Tensor, value_width: int) -> RowSums:
        """The sums of rows of which no part has come in.

        Args:
            q: `(b, h, i, d)`.
            value_width: dv.
        """
        rows, wide = q.shape[:3], wide_dtype(q)
        softmax = q.new_zeros((2, *rows), dtype=wide)
        softmax[0] = -torch.inf
        return cls(q.new_zeros((*rows, value_width), dtype=wide), softmax)

    def add(self, part: Part, first: int, end: int) -> None:
        """Take in a part of the keys of the rows `first..end-1`."""
        output, softmax = self.output[:, :, first:end], self.softmax[:, :, :, first:end]
        (row_max, row_sum), (part_max, part_sum) = softmax, part.softmax.to(softmax.dtype)
        new_max = torch.maximum(row_max, part_max)
        shift = new_max.masked_fill(new_max == -torch.inf, 0)
        share, part_share = row_sum * (row_max - shift).exp(), part_sum * (part_max - shift).exp()
        new_sum = share + part_share
        divisor = new_sum.masked_fill(new_sum == 0, 1)
        output.mul_((share / divisor).unsqueeze(-1))
        output.addcmul_(part.output.to(output.dtype), (part_share / divisor).unsqueeze(-1))
        row_max.copy_(new_max)
        row_sum.copy_(new_sum)

    def finish(self) -> tuple[Tensor, Tensor]:
        """The log-sum-exp, -inf where a row has no key, and `softmax` as `RowFlow` has it."""
        row_max, row_sum = self.softmax
        empty = row_sum == 0
        row_sum = row_sum.masked_fill(empty, 1)
        return row_max + row_sum.log(), torch.stack((row_max, row_sum))
