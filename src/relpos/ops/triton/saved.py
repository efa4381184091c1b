"""What backward keeps of the forward pass."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..layouts import number_of_layouts
from .kernel_args import Specialization
from .prepared_call import PreparedCall
from .specialize import specialize
from .tensor_args import with_dense_rows
from .tuning import TileShape

__all__ = ["Saved"]


@dataclass(frozen=True)
class Saved:
    """What backward needs of the forward pass, and what flows into it.

    Args:
        out: `(b, h, i, dv)`.
        softmax: `(2, b, h, i)`: `row_max` and `inverse_sum` of `kernels/structs.py`.
        axis_weights: `(b, h, i, s)`, or None.
        rounded_off: `(b, h, i, dv)`, as `ForwardResult` has it, or None.
        d_out: as `out`.
        d_lse: `(b, h, i)`, or None.
        d_axis_weights: as `axis_weights`, or None.
    """

    out: Tensor
    softmax: Tensor
    axis_weights: Tensor | None
    rounded_off: Tensor | None
    d_out: Tensor
    d_lse: Tensor | None
    d_axis_weights: Tensor | None

    @classmethod
    def of(
        cls,
        call: PreparedCall,
        out: Tensor,
        softmax: Tensor,
        axis_weights: Tensor,
        rounded_off: Tensor,
        d_out: Tensor,
        d_lse: Tensor | None,
        d_axis_weights: Tensor | None,
    ) -> Saved:
        """The same in the layout and the dtype that the kernels take."""
        # With weights by coordinate, the output is in float32.
        d_out = with_dense_rows(d_out.to(call.q.dtype))
        d_lse = None if d_lse is None else d_lse.contiguous()
        lost = None if rounded_off.ndim == 1 else rounded_off
        if axis_weights.ndim == 1:
            return cls(out, softmax, None, lost, d_out, d_lse, None)
        if d_axis_weights is None:
            d_axis_weights = torch.zeros_like(axis_weights)
        return cls(out, softmax, axis_weights, lost, d_out, d_lse, with_dense_rows(d_axis_weights))

    @cached_property
    def known(self) -> int:
        """What kernels may be compiled for: the same for tensors laid out alike."""
        tensors = (self.out, self.softmax, self.axis_weights, self.rounded_off)
        return number_of_layouts((*tensors, self.d_out, self.d_lse, self.d_axis_weights))

    def specialization(self, call: PreparedCall, shape: TileShape) -> Specialization:
        """The specialization of a backward kernel."""
        return specialize(
            call, shape, (self.out, self.d_out, self.axis_weights, self.d_axis_weights)
        )
