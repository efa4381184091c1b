"""A part of each row's keys, block by block."""

from __future__ import annotations

import torch
from torch import Tensor

from ..arguments import arguments_of
from ..inputs import Inputs
from ..parts import Part, RowFlow
from .backward import backward
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
    rows = WholeRows(flow.softmax, flow.delta)
    return backward(arguments_of(inputs), wanted, flow.d_output, whole_rows=rows)
