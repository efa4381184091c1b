"""The scores of a block with all terms and masks, and their softmax."""

from __future__ import annotations

import torch
from torch import Tensor

from ...shear import shear_view
from .blocks_input import BlocksInput, folded
from .grid_blocks import add_joint_bias
from .key_scores import add_queries
from .local_keys import hidden_by_ranges, hidden_by_window
from .plan import Block

__all__ = ["add_sheared", "table_product", "weights"]


def weights(
    call: BlocksInput, block: Block, lse: Tensor | None = None, softmax: Tensor | None = None
) -> Tensor:
    """`softmax(s)` of a block, `(b, h, m, n)`.

    Args:
        call: its inputs; with `whole_rows` the softmax is that of rows with other keys too.
        block: the block.
        lse: `(b, h, m)`, to which the log-sum-exp is written.
        softmax: `(2, b, h, m)`, to which the largest score of a row and the sum of
            `exp(s - largest)` are written.
    """
    scores = _scores(call, block)
    if call.whole_rows is not None:
        row_max, row_sum = call.whole_rows.softmax[:, *block.queries].unsqueeze(-1)
        return scores.sub_(_finite_or_zero(row_max)).exp_().div_(row_sum)
    if softmax is not None:
        row_max, row_sum = softmax.unsqueeze(-1)
        torch.amax(scores, -1, keepdim=True, out=row_max)
        scores.sub_(_finite_or_zero(row_max)).exp_()
        torch.sum(scores, -1, keepdim=True, out=row_sum)
        return scores.div_(row_sum.masked_fill(row_sum == 0, 1))
    empty = None
    if call.expects_empty_rows or (call.causal and block.rows.position < 0):
        empty = _without_keys(scores)
    if lse is not None:
        torch.logsumexp(scores, -1, out=lse)
    torch.softmax(scores, -1, out=scores)
    if empty is None and scores[..., 0].isnan().any():
        # Seldom: biases of -inf, or an overflow, hid all keys of a row, or there was a NaN before.
        empty = _without_keys(_scores(call, block))
        torch.softmax(scores, -1, out=scores)
    return scores if empty is None else scores.masked_fill_(empty, 0)


def _finite_or_zero(row_max: Tensor) -> Tensor:
    """What to subtract from the scores of a row, 0 where it has no key."""
    return row_max.masked_fill(row_max == -torch.inf, 0)


def _without_keys(scores: Tensor) -> Tensor:
    """`(b, h, m, 1)`: True where a row has no key left."""
    return scores.amax(-1, keepdim=True) == -torch.inf


def _scores(call: BlocksInput, block: Block) -> Tensor:
    """`s` of a block, `(b, h, m, n)`, -inf where a pair takes no part."""
    rows = block.rows
    q = folded(call.q[block.queries], call.shape.heads_per_kv_head)
    k = call.k[block.keys].flatten(0, 1)
    scores = call.workspace.take("weights", *q.shape[:2], rows.columns)
    torch.bmm(q, k.mT, out=scores)
    batch = block.batch.stop - block.batch.start
    scores = scores.view(batch, -1, rows.count, rows.columns)
    _add_keys_and_bias(call, block, scores)
    add_queries(call, block, scores)
    _add_grid(call, block, scores)
    if call.softcap:
        _cap(call, scores)
    _apply_masks(call, block, scores)
    return scores


def _add_keys_and_bias(call: BlocksInput, block: Block, scores: Tensor) -> None:
    rows, heads = block.rows, block.heads
    keys, bias = call.tables.get("keys"), call.tables.get("bias")
    p = call.p[block.queries]
    for side, columns in call.far_columns(rows):
        far_key = keys and keys.far(side, heads)
        if far_key is not None:
            scores[..., columns] += p @ far_key.mT
        far_bias = bias and bias.far(side, heads)
        if far_bias is not None:
            scores[..., columns] += far_bias[:, :, None]
    if not rows.band or (keys is None and bias is None):
        return
    band = None
    if keys is not None:
        band = call.workspace.take("band", *p.shape[:-1], rows.span)
        table_product(p, keys.band(rows, heads), out=band[..., rows.visible])
    if bias is not None:
        line = bias.band(rows, heads)[:, None]
        if band is None:
            band = call.workspace.take("band", line.shape[0], rows.count, rows.span)
            band[..., rows.visible] = line
        else:
            band[..., rows.visible] += line
    assert band is not None
    add_sheared(scores, block, band)


def _cap(call: BlocksInput, scores: Tensor) -> None:
    """`c tanh(s / c)` in place; backward keeps its derivative."""
    scores.div_(call.softcap).tanh_()
    if call.backward:
        slope = call.workspace.take("cap_slope", *scores.shape)
        call.cap_slope = torch.mul(scores, scores, out=slope).neg_().add_(1)
    scores.mul_(call.softcap)


def _add_grid(call: BlocksInput, block: Block, scores: Tensor) -> None:
    if call.grid is None:
        return
    if call.key_axis_logits is not None:
        call.grid.add_axis_logits(block, scores, call.part(block, call.key_axis_logits))
    if call.query_axis_logits is not None:
        logits = call.query_axis_logits[block.batch, block.heads, block.columns]
        scores += call.grid.query_marks(block, like=logits) @ logits.mT
    if call.joint_bias is not None:
        add_joint_bias(call.grid, call.joint_bias, block, scores)


def _apply_masks(call: BlocksInput, block: Block, scores: Tensor) -> None:
    """Hide pairs that take no part, in place."""
    rows = block.rows
    if call.mask is not None:
        mask = call.part(block, call.mask, block.columns)
        if mask.dtype == torch.bool:
            scores.masked_fill_(~mask, -torch.inf)
        else:
            scores += mask
    if call.documents is not None:
        scores.masked_fill_(call.hidden_by_documents(block), -torch.inf)
    if call.key_ranges is not None:
        scores.masked_fill_(hidden_by_ranges(call.key_ranges, block), -torch.inf)
    hidden = None
    if call.windows and call.grid is None:
        hidden = hidden_by_window(call.windows[0], block, scores.device)
    elif call.grid is not None and (call.windows or call.grid.axis_ranges is not None):
        hidden = call.grid.hidden_pairs(block, scores.device)
    if hidden is not None:
        scores.masked_fill_(hidden, -torch.inf)
    if call.causal and rows.columns > rows.position + 1:
        begin = max(rows.position + 1, 0)
        ahead = torch.arange(begin, rows.columns, device=scores.device) > torch.arange(
            rows.position, rows.position + rows.count, device=scores.device
        ).unsqueeze(1)
        scores[..., begin:].masked_fill_(ahead, -torch.inf)


def add_sheared(scores: Tensor, block: Block, band: Tensor) -> None:
    """Add `band ([b,] h, m, span)`, by offset, to the band columns of `scores (b, h, m, n)`."""
    rows = block.rows
    band[..., rows.visible.stop :] = 0
    scores[..., rows.left : rows.right] += shear_view(band, rows.band)


def table_product(x: Tensor, rows: Tensor, out: Tensor) -> Tensor:
    """`x (b, h, m, d)` times `rows (h or 1, w, d)` transposed, `(b, h, m, w)`."""
    if rows.shape[0] == 1:
        torch.mm(x.flatten(0, -2), rows[0].mT, out=out.flatten(0, 2))
        return out
    return torch.matmul(x, rows.mT, out=out)
