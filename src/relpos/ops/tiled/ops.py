"""The operators that torch sees of this backend."""

from __future__ import annotations

from torch import Tensor

from ..arguments import AXIS_TABLES, Arguments, Flow
from ..custom_op import CustomOp
from .backward import backward
from .blocks_input import BlocksInput
from .forward import forward

__all__ = ["TILED"]

TILED = CustomOp(
    "tiled",
    results=("output", "lse", "axis_weights"),
    without=(*AXIS_TABLES, "split_float32", "has_other_keys"),
)


def _forward(arguments: Arguments) -> tuple[Tensor, Tensor, Tensor]:
    need_weights = arguments.need_axis_weights
    output, lse, weights = forward(BlocksInput(arguments), arguments.return_lse, need_weights)
    # What is added to the output is not rounded before.
    return (output if need_weights else output.to(arguments.q.dtype)), lse, weights


def _backward(arguments: Arguments, flow: Flow, wanted: frozenset[str]) -> dict[str, Tensor]:
    return backward(arguments, wanted, flow.d_output, flow.d_lse, flow.d_axis_weights)


TILED.define(_forward, _backward)
