"""Backward: the weights are computed again, block by block, and never stored.

With `dP_ij = dO_i . (v_j + V[j-i])` and `dS = P * (dP - sum_j P dP)`:

    dq   = scale * (dS k + dS K)    dk = scale * (dS^T q + dS^T Q)    dv   = P^T dO
    dK_r = scale * sum dS_ij p_i    dQ_r = scale * sum dS_ij k_j
    dB_r = sum dS_ij                dV_r = sum P_ij dO_i              over j - i -> r

Sums over blocks are taken in a fixed order, so that all gradients are deterministic.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .band import BandTable
from .forward import unsheared
from .grid import collect_joint
from .plan import Block, blocks
from .problem import Problem, folded
from .queries import collect_queries
from .scores import add_sheared, table_product
from .scores import weights as softmax_weights

__all__ = ["Gradients", "backward"]


@dataclass
class Gradients:
    """Accumulators in the dtype of the computation; None where no gradient is asked for."""

    q: Tensor | None
    k: Tensor | None
    v: Tensor | None
    q_rel: Tensor | None
    mask: Tensor | None
    by_key: Tensor | None
    by_query: Tensor | None
    joint_bias: Tensor | None


def backward(
    problem: Problem,
    gradients: Gradients,
    d_output: Tensor,
    d_lse: Tensor | None,
    d_places: Tensor | None,
) -> None:
    """Fill `gradients` and those of `problem.tables` that learn.

    Args:
        problem: the call.
        gradients: zeros where a gradient is asked for.
        d_output: `(b, h, i, dv)`.
        d_lse: `(b, h, i)`, or None.
        d_places: `(b, h, i, s)`, or None.
    """
    d_output = d_output.to(problem.q.dtype)
    if problem.dropout:
        d_output = d_output / problem.kept_share
        d_places = None if d_places is None else d_places / problem.kept_share
    for block in blocks(problem.shape, problem.rows):
        d_o = d_output[block.queries]
        weights = softmax_weights(problem, block)
        dropped = problem.dropped(block, weights.shape) if problem.dropout else None
        _values_side(problem, gradients, block, weights, dropped, d_o)
        d_place = None if d_places is None else d_places[block.queries]
        d_scores = _d_scores(problem, block, weights, dropped, d_o, d_place)
        if d_lse is not None:
            d_scores.addcmul_(weights, d_lse[block.queries].unsqueeze(-1).to(weights.dtype))
        _scores_side(problem, gradients, block, d_scores)
        _grid_side(problem, gradients, block, d_scores)


def _values_side(
    problem: Problem,
    gradients: Gradients,
    block: Block,
    weights: Tensor,
    dropped: Tensor | None,
    d_o: Tensor,
) -> None:
    """What flows to `v` and to the values table."""
    table = problem.tables.get("values")
    learns = table is not None and table.learns
    if gradients.v is None and not learns:
        return
    if dropped is not None:
        kept = problem.workspace.take("kept", *weights.shape)
        weights = kept.copy_(weights).masked_fill_(dropped, 0)
    if gradients.v is not None:
        _add_outer(gradients.v, problem, block, weights, d_o)
    if table is not None and learns:
        by_offset = unsheared(problem, block, weights) if block.rows.band else None
        _collect(problem, table, block, weights, by_offset, d_o)


def _d_scores(
    problem: Problem,
    block: Block,
    weights: Tensor,
    dropped: Tensor | None,
    d_o: Tensor,
    d_place: Tensor | None,
) -> Tensor:
    """`dS = P * (dP - sum_j P dP)`, `(b, h, m, n)`."""
    rows, heads, table = block.rows, block.heads, problem.tables.get("values")
    d_weights = problem.workspace.take("d_weights", *weights.shape)
    v = problem.v[block.keys].flatten(0, 1)
    repeat = problem.shape.repeat
    torch.bmm(folded(d_o, repeat), v.mT, out=folded(d_weights, repeat))
    if table is not None:
        for side, columns in problem.far_columns(rows):
            far = table.far(side, heads)
            if far is not None:
                d_weights[..., columns] += d_o @ far.mT
        if rows.band:
            band = problem.workspace.take("band", *d_o.shape[:3], rows.span)
            table_product(d_o, table.band(rows, heads), out=band[..., rows.met])
            add_sheared(d_weights, block, band)
    if d_place is not None and problem.grid is not None:
        problem.grid.blocks.add_by_key(d_weights, d_place)
    if dropped is not None:
        d_weights.masked_fill_(dropped, 0)
    # What torch's own softmax calls backward: one pass where public operators would take three.
    return torch.ops.aten._softmax_backward_data.out(
        d_weights, weights, -1, weights.dtype, grad_input=d_weights
    )


def _scores_side(problem: Problem, gradients: Gradients, block: Block, d_scores: Tensor) -> None:
    """What flows to `q`, `k`, `q_rel`, the mask and the tables of the scores."""
    q, p = problem.q[block.queries], problem.p[block.queries]
    keys, bias = problem.tables.get("keys"), problem.tables.get("bias")
    if gradients.mask is not None:
        part = problem.part(block, gradients.mask, block.columns)
        part += d_scores.sum_to_size(part.shape)
    if gradients.k is not None:
        _add_outer(gradients.k, problem, block, d_scores, q)
    collect_queries(
        problem, block, d_scores, None if gradients.k is None else gradients.k[block.keys]
    )
    if gradients.q is not None:
        k = problem.k[block.keys].flatten(0, 1)
        d_q = torch.bmm(folded(d_scores, problem.shape.repeat), k)
        gradients.q[block.queries] = d_q.view(q.shape)

    d_p = gradients.q_rel if problem.terms.q_rel is not None else gradients.q
    uses = (
        (bias is not None and bias.learns)
        or (keys is not None and (keys.learns or d_p is not None))
    )  # fmt: skip
    by_offset = unsheared(problem, block, d_scores) if uses and block.rows.band else None
    if bias is not None and bias.learns:
        _collect(problem, bias, block, d_scores, by_offset, None)
    if keys is not None and keys.learns:
        _collect(problem, keys, block, d_scores, by_offset, p)
    if keys is not None and d_p is not None:
        part = d_p[block.queries]
        for side, columns in problem.far_columns(block.rows):
            far = keys.far(side, block.heads)
            if far is not None:
                part += d_scores[..., columns].sum(-1, keepdim=True) * far
        if by_offset is not None:
            part += by_offset @ keys.band(block.rows, block.heads)


def _grid_side(problem: Problem, gradients: Gradients, block: Block, d_scores: Tensor) -> None:
    """What flows to the terms of a grid by place."""
    if problem.grid is None:
        return
    grid = problem.grid.blocks
    if gradients.by_key is not None:
        part = problem.part(block, gradients.by_key)
        part += grid.sum_by_key(d_scores).sum_to_size(part.shape)
    if gradients.by_query is not None:
        marks = grid.of_queries(block, like=d_scores)
        gradients.by_query[block.batch, block.heads] += d_scores.mT @ marks
    if gradients.joint_bias is not None:
        collect_joint(grid, gradients.joint_bias, block, d_scores)


def _add_outer(total: Tensor, problem: Problem, block: Block, x: Tensor, y: Tensor) -> None:
    """Add `sum_i x_ij y_i` to the block's keys of `total (b, g, j, d)`."""
    repeat = problem.shape.repeat
    part = total[block.keys]
    part += torch.bmm(folded(x, repeat).mT, folded(y, repeat)).view(part.shape)


def _collect(
    problem: Problem,
    table: BandTable,
    block: Block,
    x: Tensor,
    by_offset: Tensor | None,
    y: Tensor | None,
) -> None:
    """Add `sum_ij x_ij y_i` over each offset (`sum_ij x_ij` without `y`) to a table's gradient."""
    for side, columns in problem.far_columns(block.rows):
        if table.far(side, block.heads) is not None:
            far = x[..., columns].sum(-1, keepdim=True)
            table.add_far(side, block.heads, _over_rows(far, y, table.per_head))
    if by_offset is not None:
        grad = _over_rows(by_offset, y, table.per_head)
        table.add_band(block.rows, block.heads, grad)


def _over_rows(x: Tensor, y: Tensor | None, per_head: bool) -> Tensor:
    """`sum x (b, h, m, w)^T y (b, h, m, d)` over batch and rows (and heads): `(h or 1, w[, d])`."""
    if y is None:
        return x.sum((0, 2)) if per_head else x.sum((0, 1, 2)).unsqueeze(0)
    # One product for each head of the batch, then their sum: one long product over everything
    # rounds more.
    each = x.mT @ y
    return each.sum(0) if per_head else each.sum((0, 1)).unsqueeze(0)
