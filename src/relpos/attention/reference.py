"""The specification in the shortest readable PyTorch: builds the `i x j` scores.

s_ij = scale * (q_i . k_j + p_i . K[j-i] + k_j . Q[j-i]) + B[j-i] + mask_ij
o_i  = sum_j softmax(s_i)_j * (v_j + V[j-i])
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import dropout

from ..offsets import offsets, table_rows
from ..terms import OffsetTable
from .inputs import Inputs

__all__ = ["attention", "attention_weights", "refuse", "unavailable"]


def unavailable() -> str | None:
    """None: plain PyTorch runs everywhere."""
    return None


def refuse(inputs: Inputs) -> str | None:
    """Why `attention` cannot take these inputs, or None."""
    return None


def attention(inputs: Inputs) -> tuple[Float[Tensor, "b h i dv"], Float[Tensor, "b h i"]]:
    """Output and log-sum-exp; half precision is computed in float32, as SDPA's math path does."""
    values = inputs.terms.values
    weights, lse = attention_weights(inputs)
    weights = dropout(weights, inputs.dropout)
    v = inputs.v.to(weights.dtype)
    output = weights @ v.repeat_interleave(weights.shape[1] // v.shape[1], dim=1)
    if values is not None:
        at = _offsets(inputs)
        output = output + _gather(weights, values, at) @ values.rows.to(weights.dtype)
    return output.to(inputs.q.dtype), lse


def attention_weights(inputs: Inputs) -> tuple[Float[Tensor, "b h i j"], Float[Tensor, "b h i"]]:
    """`softmax_j(s_ij)` before dropout and its log-sum-exp, in float32 at least."""
    terms, at = inputs.terms, _offsets(inputs)
    work = torch.promote_types(inputs.q.dtype, torch.float32)
    q = inputs.q.to(work)
    k = inputs.k.to(work).repeat_interleave(q.shape[1] // inputs.k.shape[1], dim=1)

    scores = q @ k.mT
    if terms.keys is not None:
        p = q if terms.q_rel is None else terms.q_rel.to(work)
        scores = scores + _pick(p @ terms.keys.rows.to(work).mT, terms.keys, at)
    if terms.queries is not None:
        scores = scores + _pick(k @ terms.queries.rows.to(work).mT, terms.queries, at.mT).mT
    scores = inputs.scale * scores
    if terms.bias is not None:
        rows = terms.bias.rows.to(work)[:, None].expand(-1, q.shape[2], -1)
        scores = scores + _pick(rows, terms.bias, at)
    if inputs.mask is not None and inputs.mask.dtype != torch.bool:
        scores = scores + inputs.mask.to(work)
    if inputs.mask is not None and inputs.mask.dtype == torch.bool:
        scores = scores.masked_fill(~inputs.mask, -torch.inf)
    if inputs.causal:
        scores = scores.masked_fill(at > 0, -torch.inf)

    empty = (scores == -torch.inf).all(-1, keepdim=True)
    scores = scores.masked_fill(empty, 0)
    weights, lse = scores.softmax(-1), scores.logsumexp(-1)
    return weights.masked_fill(empty, 0), lse.masked_fill(empty[..., 0], -torch.inf)


def _offsets(inputs: Inputs) -> Int64[Tensor, "i j"]:
    i, j = inputs.q.shape[2], inputs.k.shape[2]
    return offsets(i, j, query_start=inputs.query_start, device=inputs.q.device)


def _pick(
    per_row: Float[Tensor, "*batch i r"], table: OffsetTable, at: Int64[Tensor, "i j"]
) -> Float[Tensor, "*batch i j"]:
    """`y[i, j] = per_row[i, row of offset j - i]`."""
    index, inside = table_rows(table, at)
    picked = per_row.gather(-1, index.expand(*per_row.shape[:-2], *index.shape))
    return picked if inside is None else picked.where(inside, 0)


def _gather(
    weights: Float[Tensor, "b h i j"], table: OffsetTable, at: Int64[Tensor, "i j"]
) -> Float[Tensor, "b h i r"]:
    """`y[i, r]` = the weight that query i gives to all keys whose offset meets row r."""
    index, inside = table_rows(table, at)
    weights = weights if inside is None else weights.where(inside, 0)
    per_row = weights.new_zeros(*weights.shape[:-1], table.rows.shape[1])
    return per_row.scatter_add(-1, index.expand_as(weights), weights)
