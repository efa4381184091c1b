"""The scores of a block with all terms and masks, and their softmax."""

from __future__ import annotations

import torch
from torch import Tensor

from ...shear import shear_view
from .documents import apart
from .grid import add_joint
from .plan import Block
from .problem import Problem, folded
from .queries import add_queries

__all__ = ["add_sheared", "table_product", "weights"]


def weights(problem: Problem, block: Block, lse: Tensor | None = None) -> Tensor:
    """`softmax(s)` of a block, `(b, h, m, n)`; the log-sum-exp is written to `lse`."""
    scores = _scores(problem, block)
    empty = None
    if problem.expects_empty_rows or (problem.causal and block.rows.position < 0):
        empty = _without_keys(scores)
    if lse is not None:
        torch.logsumexp(scores, -1, out=lse)
    torch.softmax(scores, -1, out=scores)
    if empty is None and scores[..., 0].isnan().any():
        # Seldom: biases of -inf, or an overflow, hid all keys of a row, or there was a NaN before.
        empty = _without_keys(_scores(problem, block))
        torch.softmax(scores, -1, out=scores)
    return scores if empty is None else scores.masked_fill_(empty, 0)


def _without_keys(scores: Tensor) -> Tensor:
    """`(b, h, m, 1)`: True where a row has no key left."""
    return scores.amax(-1, keepdim=True) == -torch.inf


def _scores(problem: Problem, block: Block) -> Tensor:
    """`s` of a block, `(b, h, m, n)`, -inf where a pair takes no part."""
    rows = block.rows
    q = folded(problem.q[block.queries], problem.shape.repeat)
    k = problem.k[block.keys].flatten(0, 1)
    scores = problem.workspace.take("weights", *q.shape[:2], rows.columns)
    torch.bmm(q, k.mT, out=scores)
    batch = block.batch.stop - block.batch.start
    scores = scores.view(batch, -1, rows.count, rows.columns)
    _add_keys_and_bias(problem, block, scores)
    add_queries(problem, block, scores)
    _add_grid(problem, block, scores)
    _apply_masks(problem, block, scores)
    return scores


def _add_keys_and_bias(problem: Problem, block: Block, scores: Tensor) -> None:
    rows, heads = block.rows, block.heads
    keys, bias = problem.tables.get("keys"), problem.tables.get("bias")
    p = problem.p[block.queries]
    for side, columns in problem.far_columns(rows):
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
        band = problem.workspace.take("band", *p.shape[:-1], rows.span)
        table_product(p, keys.band(rows, heads), out=band[..., rows.met])
    if bias is not None:
        line = bias.band(rows, heads)[:, None]
        if band is None:
            band = problem.workspace.take("band", line.shape[0], rows.count, rows.span)
            band[..., rows.met] = line
        else:
            band[..., rows.met] += line
    assert band is not None
    add_sheared(scores, block, band)


def _add_grid(problem: Problem, block: Block, scores: Tensor) -> None:
    if problem.grid is None:
        return
    grid = problem.grid.blocks
    if problem.grid.by_key is not None:
        grid.add_by_key(scores, problem.part(block, problem.grid.by_key))
    if problem.grid.by_query is not None:
        by_query = problem.grid.by_query[block.batch, block.heads]
        scores += grid.of_queries(block, like=by_query) @ by_query.mT
    if problem.grid.joint_bias is not None:
        add_joint(grid, problem.grid.joint_bias, block, scores)


def _apply_masks(problem: Problem, block: Block, scores: Tensor) -> None:
    """Mask in place."""
    rows = block.rows
    if problem.mask is not None:
        mask = problem.part(block, problem.mask, block.columns)
        if mask.dtype == torch.bool:
            scores.masked_fill_(~mask, -torch.inf)
        else:
            scores += mask
    if problem.documents is not None:
        separate = apart(problem.documents, block, problem.shape.start)
        scores.masked_fill_(separate, -torch.inf)
    if problem.causal and rows.columns > rows.position + 1:
        begin = max(rows.position + 1, 0)
        ahead = torch.arange(begin, rows.columns, device=scores.device) > torch.arange(
            rows.position, rows.position + rows.count, device=scores.device
        ).unsqueeze(1)
        scores[..., begin:].masked_fill_(ahead, -torch.inf)


def add_sheared(scores: Tensor, block: Block, band: Tensor) -> None:
    """Add `band ([b,] h, m, span)`, by offset, to the band columns of `scores (b, h, m, n)`."""
    rows = block.rows
    band[..., rows.met.stop :] = 0
    scores[..., rows.left : rows.right] += shear_view(band, rows.band)


def table_product(x: Tensor, rows: Tensor, out: Tensor) -> Tensor:
    """`x (b, h, m, d)` times `rows (h or 1, w, d)` transposed, `(b, h, m, w)`."""
    if rows.shape[0] == 1:
        torch.mm(x.reshape(-1, x.shape[-1]), rows[0].mT, out=out.flatten(0, 2))
        return out
    return torch.matmul(x, rows.mT, out=out)
