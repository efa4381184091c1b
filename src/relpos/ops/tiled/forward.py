"""Forward: `o_i = sum_j softmax(s_i)_j (v_j + V[j-i])`, block by block."""

from __future__ import annotations

import torch
from torch import Tensor

from ...shear import shear_view
from .plan import Block, blocks
from .problem import Problem, folded
from .scores import weights

__all__ = ["forward", "unsheared"]


def forward(problem: Problem, need_lse: bool, need_places: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The output, the log-sum-exp, and the weights by place of a grid; empty unless needed.

    Args:
        problem: the call.
        need_lse: whether to return the log-sum-exp `(b, h, i)`.
        need_places: whether to return the weights summed over the keys of each place of a grid,
            `(b, h, i, s)`.
    """
    q, shape = problem.q, problem.shape
    output = q.new_zeros(*q.shape[:3], problem.v.shape[3])
    lse = q.new_full(q.shape[:3] if need_lse else (0,), -torch.inf)
    grid = problem.grid.blocks if problem.grid is not None and need_places else None
    places = q.new_zeros(0 if grid is None else (*q.shape[:3], grid.width))
    for block in blocks(shape, problem.rows):
        row_lse = q.new_empty(output[block.queries].shape[:3]) if need_lse else None
        some_weights = weights(problem, block, row_lse)
        if row_lse is not None:
            lse[block.queries] = row_lse
        if problem.dropout:
            some_weights.masked_fill_(problem.dropped(block, some_weights.shape), 0)
        v = problem.v[block.keys].flatten(0, 1)
        some = torch.bmm(folded(some_weights, shape.repeat), v).view(*some_weights.shape[:3], -1)
        output[block.queries] = _add_values(problem, block, some_weights, some)
        if grid is not None:
            places[block.queries] = grid.sum_by_key(some_weights)
    if problem.dropout:
        output /= problem.kept_share
        places /= problem.kept_share
    return output, lse, places


def _add_values(problem: Problem, block: Block, weights: Tensor, output: Tensor) -> Tensor:
    """Add `sum_j weights_ij V[j-i]` in place."""
    table = problem.tables.get("values")
    if table is None:
        return output
    rows, heads = block.rows, block.heads
    for side, columns in problem.far_columns(rows):
        far = table.far(side, heads)
        if far is not None:
            output += weights[..., columns].sum(-1, keepdim=True) * far
    if rows.band:
        output += unsheared(problem, block, weights) @ table.band(rows, heads)
    return output


def unsheared(problem: Problem, block: Block, scores: Tensor) -> Tensor:
    """The band of `scores (b, h, m, n)` by offset, `(b, h, m, w)`, zeros where no key is."""
    rows = block.rows
    by_offset = problem.workspace.take("unsheared", *scores.shape[:3], rows.span).zero_()
    shear_view(by_offset, rows.band).copy_(scores[..., rows.left : rows.right])
    return by_offset[..., rows.met]
