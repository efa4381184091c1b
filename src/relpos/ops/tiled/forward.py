"""Forward: `o_i = sum_j softmax(s_i)_j (v_j + V[j-i])`, block by block."""

from __future__ import annotations

import torch
from torch import Tensor

from ...shear import shear_view
from ..result_layout import empty_as
from .blocks_input import BlocksInput, folded
from .plan import Block, blocks
from .scores import weights

__all__ = ["forward", "unsheared"]


def forward(
    call: BlocksInput,
    need_lse: bool,
    need_axis_weights: bool,
    softmax: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The output, the log-sum-exp, and the weights per axis of a grid; empty unless needed.

    Args:
        call: its inputs.
        need_lse: whether to return the log-sum-exp `(b, h, i)`.
        need_axis_weights: whether to return the weights summed over the keys of each coordinate
            of a grid, `(b, h, i, s)`.
        softmax: `(2, b, h, i)`, to which the largest score of each row and the sum of
            `exp(s - largest)` are written, of rows with a key; or None.
    """
    q, shape = call.q, call.shape
    output = empty_as(q, (*q.shape[:3], call.v.shape[3])).zero_()
    lse = q.new_full(q.shape[:3] if need_lse else (0,), -torch.inf)
    grid = call.grid if need_axis_weights else None
    axis_weights = q.new_zeros(0 if grid is None else (*q.shape[:3], grid.num_key_coordinates))
    for block in blocks(shape, call.rows):
        row_lse = q.new_empty(output[block.queries].shape[:3]) if need_lse else None
        row_softmax = None if softmax is None else torch.empty_like(softmax[:, *block.queries])
        block_weights = weights(call, block, row_lse, row_softmax)
        if softmax is not None and row_softmax is not None:
            softmax[:, *block.queries] = row_softmax
        if row_lse is not None:
            lse[block.queries] = row_lse
        if call.dropout:
            block_weights.masked_fill_(call.dropped(block, block_weights.shape), 0)
        v = call.v[block.keys].flatten(0, 1)
        attended = torch.bmm(folded(block_weights, shape.heads_per_kv_head), v).view(
            *block_weights.shape[:3], -1
        )
        output[block.queries] = _add_values(call, block, block_weights, attended)
        if grid is not None:
            axis_weights[block.queries] = grid.sum_per_coordinate(block, block_weights)
    if call.dropout:
        output /= call.kept_share
        axis_weights /= call.kept_share
    return output, lse, axis_weights


def _add_values(call: BlocksInput, block: Block, weights: Tensor, output: Tensor) -> Tensor:
    """Add `sum_j weights_ij V[j-i]` in place."""
    table = call.tables.get("values")
    if table is None:
        return output
    rows, heads = block.rows, block.heads
    for side, columns in call.far_columns(rows):
        far = table.far(side, heads)
        if far is not None:
            output += weights[..., columns].sum(-1, keepdim=True) * far
    if rows.band:
        output += unsheared(call, block, weights) @ table.band(rows, heads)
    return output


def unsheared(call: BlocksInput, block: Block, scores: Tensor) -> Tensor:
    """The band of `scores (b, h, m, n)` by offset, `(b, h, m, w)`, zeros where no key is."""
    rows = block.rows
    by_offset = call.workspace.take("unsheared", *scores.shape[:3], rows.span).zero_()
    shear_view(by_offset, rows.band).copy_(scores[..., rows.left : rows.right])
    return by_offset[..., rows.visible]
