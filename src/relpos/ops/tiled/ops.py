"""The operators that torch sees of this backend."""

from __future__ import annotations

from torch import Tensor

from ..arguments import AXIS_TABLES, TABLES, Arguments, Flow
from ..custom_op import CustomOp
from ..result_layout import empty_gradient
from .backward import Gradients, backward
from .blocks_input import BlocksInput
from .forward import forward

__all__ = ["TILED"]

TILED = CustomOp(
    "tiled", results=("output", "lse", "axis_weights"), without=(*AXIS_TABLES, "split_float32")
)


def _forward(arguments: Arguments) -> tuple[Tensor, Tensor, Tensor]:
    need_weights = arguments.need_axis_weights
    output, lse, weights = forward(BlocksInput(arguments), arguments.return_lse, need_weights)
    # What is added to the output is not rounded before.
    return (output if need_weights else output.to(arguments.q.dtype)), lse, weights


def _backward(arguments: Arguments, flow: Flow, wanted: frozenset[str]) -> dict[str, Tensor]:
    learn = wanted & set(TABLES)
    call = BlocksInput(arguments, learn)
    zeros = {
        name: empty_gradient(name, getattr(arguments, name), call.q.dtype).zero_()
        for name in wanted - learn
    }
    backward(call, Gradients(**zeros), flow.d_output, flow.d_lse, flow.d_axis_weights)
    for name in ("q", "q_rel"):
        if name in zeros:
            zeros[name] *= call.scale
    return zeros | {name: call.tables[name].gradient() for name in learn}


TILED.define(_forward, _backward)
