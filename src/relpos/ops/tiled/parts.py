"""A part of each row's keys, block by block."""

from __future__ import annotations

import torch
from torch import Tensor

from ..arguments import TABLES, arguments_of
from ..inputs import Inputs
from ..parts import Part, RowFlow
from .backward import Gradients, backward
from .blocks_input import BlocksInput, WholeRows
from .forward import forward

__all__ = ["part", "part_gradients"]


def part(inputs: Inputs) -> Part:
    """The output and the softmax over these keys, in 32 bits at least."""
    call = BlocksInput(arguments_of(inputs))
    softmax = call.q.new_zeros((2, *call.q.shape[:3]))
    softmax[0] = -torch.inf
    output, _, _ = forward(call, need_lse=False, need_axis_weights=False, softmax=softmax)
    return Part(output, softmax)


def part_gradients(inputs: Inputs, flow: RowFlow, wanted: frozenset[str]) -> dict[str, Tensor]:
    """The gradients by name, in 32 bits at least."""
    arguments, learn = arguments_of(inputs, has_other_keys=True), wanted & set(TABLES)
    call = BlocksInput(arguments, learn, WholeRows(flow.softmax, flow.delta))
    zeros = {
        name: torch.zeros_like(
            getattr(arguments, name), dtype=call.q.dtype, memory_format=torch.contiguous_format
        )
        for name in wanted - learn
    }
    backward(call, Gradients(**zeros), flow.d_output, None, None)
    for name in ("q", "q_rel"):
        if name in zeros:
            zeros[name] *= call.scale
    return zeros | {name: call.tables[name].gradient() for name in learn}
