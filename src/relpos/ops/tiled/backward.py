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

from ..arguments import TABLES, Arguments
from ..result_layout import empty_gradient
from .band import BandTable
from .blocks_input import BlocksInput, WholeRows, folded
from .forward import unsheared
from .grid_blocks import collect_joint_bias
from .key_scores import collect_queries
from .plan import Block, blocks
from .scores import add_sheared, table_product
from .scores import weights as softmax_weights

__all__ = ["backward"]

# What torch's own softmax calls backward: one pass where public operators take three.
_SOFTMAX_BACKWARD = getattr(torch.ops.aten, "_softmax_backward_data", None)


@dataclass
class _Gradients:
    """Accumulators in the dtype of the computation; None where no gradient is asked for."""

    q: Tensor | None = None
    k: Tensor | None = None
    v: Tensor | None = None
    q_rel: Tensor | None = None
    mask: Tensor | None = None
    key_axis_logits: Tensor | None = None
    query_axis_logits: Tensor | None = None
    joint_bias: Tensor | None = None


def backward(
    arguments: Arguments,
    wanted: frozenset[str],
    d_output: Tensor,
    d_lse: Tensor | None = None,
    d_axis_weights: Tensor | None = None,
    whole_rows: WholeRows | None = None,
) -> dict[str, Tensor]:
    """The gradients by name, in 32 bits at least.

    Args:
        arguments: of the operator.
        wanted: names of learnable arguments.
        d_output: `(b, h, i, dv)`.
        d_lse: `(b, h, i)`, or None.
        d_axis_weights: `(b, h, i, s)`, or None.
        whole_rows: as in `BlocksInput`.
    """
    learn = wanted & set(TABLES)
    call = BlocksInput(arguments, learn, whole_rows)
    zeros = {
        name: empty_gradient(name, getattr(arguments, name), call.q.dtype).zero_()
        for name in wanted - learn
    }
    _fill(call, _Gradients(**zeros), d_output, d_lse, d_axis_weights)
    for name in ("q", "q_rel"):
        if name in zeros:
            zeros[name] *= call.scale
    return zeros | {name: call.tables[name].gradient() for name in learn}


def _fill(
    call: BlocksInput,
    gradients: _Gradients,
    d_output: Tensor,
    d_lse: Tensor | None,
    d_axis_weights: Tensor | None,
) -> None:
    """Fill `gradients` and those of `call.tables` that learn."""
    d_output = d_output.to(call.q.dtype)
    if call.dropout:
        d_output = d_output / call.kept_share
        d_axis_weights = None if d_axis_weights is None else d_axis_weights / call.kept_share
    for block in blocks(call.shape, call.rows):
        d_o = d_output[block.queries]
        weights = softmax_weights(call, block)
        dropped = call.dropped(block, weights.shape) if call.dropout else None
        _values_side(call, gradients, block, weights, dropped, d_o)
        d_row_weights = None if d_axis_weights is None else d_axis_weights[block.queries]
        d_scores = _d_scores(call, block, weights, dropped, d_o, d_row_weights)
        if d_lse is not None:
            d_scores.addcmul_(weights, d_lse[block.queries].unsqueeze(-1).to(weights.dtype))
        if gradients.mask is not None:
            part = call.part(block, gradients.mask, block.columns)
            part += d_scores.sum_to_size(part.shape)
        if call.cap_slope is not None:
            d_scores.mul_(call.cap_slope)
        _scores_side(call, gradients, block, d_scores)
        _grid_side(call, gradients, block, d_scores)


def _values_side(
    call: BlocksInput,
    gradients: _Gradients,
    block: Block,
    weights: Tensor,
    dropped: Tensor | None,
    d_o: Tensor,
) -> None:
    """What flows to `v` and to the values table."""
    table = call.tables.get("values")
    learns = table is not None and table.learns
    if gradients.v is None and not learns:
        return
    if dropped is not None:
        kept = call.workspace.take("kept", *weights.shape)
        weights = kept.copy_(weights).masked_fill_(dropped, 0)
    if gradients.v is not None:
        _add_outer(gradients.v, call, block, weights, d_o)
    if table is not None and learns:
        by_offset = unsheared(call, block, weights) if block.rows.band else None
        _collect(call, table, block, weights, by_offset, d_o)


def _d_scores(
    call: BlocksInput,
    block: Block,
    weights: Tensor,
    dropped: Tensor | None,
    d_o: Tensor,
    d_row_weights: Tensor | None,
) -> Tensor:
    """`dS = P * (dP - sum_j P dP)`, `(b, h, m, n)`."""
    rows, heads, table = block.rows, block.heads, call.tables.get("values")
    d_weights = call.workspace.take("d_weights", *weights.shape)
    v = call.v[block.keys].flatten(0, 1)
    heads_per_kv_head = call.shape.heads_per_kv_head
    torch.bmm(folded(d_o, heads_per_kv_head), v.mT, out=folded(d_weights, heads_per_kv_head))
    if table is not None:
        for side, columns in call.far_columns(rows):
            far = table.far(side, heads)
            if far is not None:
                d_weights[..., columns] += d_o @ far.mT
        if rows.band:
            band = call.workspace.take("band", *d_o.shape[:3], rows.span)
            table_product(d_o, table.band(rows, heads), out=band[..., rows.visible])
            add_sheared(d_weights, block, band)
    if d_row_weights is not None and call.grid is not None:
        call.grid.add_axis_logits(block, d_weights, d_row_weights)
    if dropped is not None:
        d_weights.masked_fill_(dropped, 0)
    if call.whole_rows is not None:
        delta = call.whole_rows.delta[block.queries].unsqueeze(-1)
        return d_weights.sub_(delta).mul_(weights)
    return _softmax_backward(d_weights, weights)


def _softmax_backward(d_weights: Tensor, weights: Tensor) -> Tensor:
    """`P * (dP - sum_j P dP)`, in place of `dP`."""
    if _SOFTMAX_BACKWARD is None:
        total = (weights * d_weights).sum(-1, keepdim=True)
        return d_weights.sub_(total).mul_(weights)
    return _SOFTMAX_BACKWARD.out(d_weights, weights, -1, weights.dtype, grad_input=d_weights)


def _scores_side(call: BlocksInput, gradients: _Gradients, block: Block, d_scores: Tensor) -> None:
    """What flows to `q`, `k`, `q_rel` and the tables of the scores."""
    q, p = call.q[block.queries], call.p[block.queries]
    keys, bias = call.tables.get("keys"), call.tables.get("bias")
    if gradients.k is not None:
        _add_outer(gradients.k, call, block, d_scores, q)
    collect_queries(call, block, d_scores, None if gradients.k is None else gradients.k[block.keys])
    if gradients.q is not None:
        k = call.k[block.keys].flatten(0, 1)
        d_q = torch.bmm(folded(d_scores, call.shape.heads_per_kv_head), k)
        gradients.q[block.queries] = d_q.view(q.shape)

    d_p = gradients.q_rel if call.terms.q_rel is not None else gradients.q
    uses = (
        (bias is not None and bias.learns)
        or (keys is not None and (keys.learns or d_p is not None))
    )  # fmt: skip
    by_offset = unsheared(call, block, d_scores) if uses and block.rows.band else None
    if bias is not None and bias.learns:
        _collect(call, bias, block, d_scores, by_offset, None)
    if keys is not None and keys.learns:
        _collect(call, keys, block, d_scores, by_offset, p)
    if keys is not None and d_p is not None:
        part = d_p[block.queries]
        for side, columns in call.far_columns(block.rows):
            far = keys.far(side, block.heads)
            if far is not None:
                part += d_scores[..., columns].sum(-1, keepdim=True) * far
        if by_offset is not None:
            part += by_offset @ keys.band(block.rows, block.heads)


def _grid_side(call: BlocksInput, gradients: _Gradients, block: Block, d_scores: Tensor) -> None:
    """What flows to the terms of a grid."""
    grid = call.grid
    if grid is None:
        return
    if gradients.key_axis_logits is not None:
        part = call.part(block, gradients.key_axis_logits)
        part += grid.sum_per_coordinate(block, d_scores).sum_to_size(part.shape)
    if gradients.query_axis_logits is not None:
        marks = grid.query_marks(block, like=d_scores)
        gradients.query_axis_logits[block.batch, block.heads, block.columns] += d_scores.mT @ marks
    if gradients.joint_bias is not None:
        collect_joint_bias(grid, gradients.joint_bias, block, d_scores)


def _add_outer(total: Tensor, call: BlocksInput, block: Block, x: Tensor, y: Tensor) -> None:
    """Add `sum_i x_ij y_i` to the block's keys of `total (b, g, j, d)`."""
    heads_per_kv_head = call.shape.heads_per_kv_head
    part = total[block.keys]
    part += torch.bmm(folded(x, heads_per_kv_head).mT, folded(y, heads_per_kv_head)).view(
        part.shape
    )


def _collect(
    call: BlocksInput,
    table: BandTable,
    block: Block,
    x: Tensor,
    by_offset: Tensor | None,
    y: Tensor | None,
) -> None:
    """Add `sum_ij x_ij y_i` over each offset (`sum_ij x_ij` without `y`) to a table's gradient."""
    for side, columns in call.far_columns(block.rows):
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
