"""The specification in the shortest readable PyTorch: builds the `i x j` scores.

s_ij = cap(scale * (q_i . k_j + p_i . K[j-i] + k_j . Q[j-i]) + B[j-i]) + mask_ij
o_i  = sum_j softmax(s_i)_j * (v_j + V[j-i])

with `cap(x) = c tanh(x / c)` for a softcap of c. On a grid the tables' part is the sum over its
axes, each with the offset along itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import dropout, pad

from ..offsets import axis_offsets, interpolation_points, offsets, row_indices
from ..terms import GridTerms, OffsetTable, Terms
from .inputs import Inputs, wide_dtype
from .locality import outside_axis_ranges, outside_ranges, outside_window

__all__ = [
    "attention",
    "attention_weights",
    "relative_logits",
    "unavailable",
    "unsupported",
    "weighted_values",
]


def unavailable() -> str | None:
    """None: plain PyTorch runs everywhere."""
    return None


def unsupported(inputs: Inputs) -> str | None:
    """Why `attention` cannot take these inputs, or None."""
    if inputs.dropout and inputs.dropout_origin is not None:
        return "not supported by this backend: the dropout of a larger call"
    return None


def attention(inputs: Inputs) -> tuple[Float[Tensor, "b h i dv"], Float[Tensor, "b h i"]]:
    """Output and log-sum-exp; half precision is computed in float32, as SDPA's math path does."""
    weights, lse = attention_weights(inputs)
    return weighted_values(inputs, dropout(weights, inputs.dropout)).to(inputs.q.dtype), lse


def weighted_values(inputs: Inputs, weights: Float[Tensor, "b h i j"]) -> Float[Tensor, "b h i dv"]:
    """`sum_j w_ij (v_j + V[j-i])` in the dtype of the weights."""
    v = inputs.v.to(weights.dtype)
    output = weights @ v.repeat_interleave(weights.shape[1] // v.shape[1], dim=1)
    for axis in _axes(inputs):
        if (values := axis.terms.values) is not None:
            by_row = _sum_by_row(axis.only_on_grid(weights), values, axis.offsets)
            output = output + by_row @ values.rows.to(weights.dtype)
    return output


def attention_weights(
    inputs: Inputs, more_logits: Float[Tensor, "..."] | None = None
) -> tuple[Float[Tensor, "b h i j"], Float[Tensor, "b h i"]]:
    """`softmax_j(s_ij)` before dropout and its log-sum-exp, in float32 at least.

    Args:
        inputs: the call.
        more_logits: `(b or 1, h or 1, i, j)`, what the scores have besides before their cap.
    """
    q, k = _queries_and_keys(inputs)
    scores = inputs.scale * (q @ k.mT) + relative_logits(inputs)
    if more_logits is not None:
        scores = scores + more_logits
    if inputs.softcap is not None:
        scores = inputs.softcap * torch.tanh(scores / inputs.softcap)
    scores = _masked(scores, inputs)

    empty = (scores == -torch.inf).all(-1, keepdim=True)
    scores = scores.masked_fill(empty, 0)
    # The derivative of `logsumexp` is `exp(scores - lse)`. Scores of -1e9, an additive mask, leave
    # lse no digits for the sum, and each key would count fully: so it is taken near 0.
    shift = scores.logsumexp(-1, keepdim=True).detach()
    lse = shift.squeeze(-1) + (scores - shift).logsumexp(-1)
    return scores.softmax(-1).masked_fill(empty, 0), lse.masked_fill(empty[..., 0], -torch.inf)


def _masked(scores: Tensor, inputs: Inputs) -> Tensor:
    """The scores plus the mask, -inf where a pair does not take part."""
    q, k = inputs.q, inputs.k
    mask, query_start = inputs.mask, inputs.query_start
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -torch.inf)
    elif mask is not None:
        scores = scores + mask.to(scores.dtype)
    if inputs.documents is not None:
        of_key = inputs.documents[:, None, None, :]
        of_query = inputs.query_documents
        if of_query is None:
            of_query = inputs.documents[:, query_start : query_start + q.shape[2]]
        scores = scores.masked_fill(
            (of_query[:, None, :, None] != of_key) | (of_key < 0), -torch.inf
        )
    if inputs.causal:
        offset = offsets(q.shape[2], k.shape[2], query_start=query_start, device=q.device)
        scores = scores.masked_fill(offset > 0, -torch.inf)
    axes = _axes(inputs) if inputs.window else []
    for axis, window in zip(axes, inputs.window, strict=True):
        outside = outside_window(axis.offsets, window)
        if outside is not None:
            scores = scores.masked_fill(outside, -torch.inf)
    if inputs.axis_ranges is not None:
        assert isinstance(inputs.terms, GridTerms)
        grid = inputs.terms.query_grid, inputs.terms.shape
        outside = outside_axis_ranges(inputs.axis_ranges, *grid, inputs.terms.prefix)
        scores = scores.masked_fill(outside, -torch.inf)
    if inputs.key_ranges is not None:
        keys = torch.arange(k.shape[2], device=k.device)
        scores = scores.masked_fill(outside_ranges(inputs.key_ranges, keys), -torch.inf)
    return scores


def relative_logits(inputs: Inputs) -> Float[Tensor, "b h i j"]:
    """What the tables add to the scores."""
    q, k = _queries_and_keys(inputs)
    scores = q.new_zeros(*q.shape[:3], k.shape[2])
    for axis in _axes(inputs):
        scores = scores + axis.only_on_grid(_axis_logits(axis, q, k, inputs.scale))
    if isinstance(inputs.terms, GridTerms) and inputs.terms.joint_bias is not None:
        scores = scores + _joint_bias_logits(inputs.terms, inputs.terms.joint_bias.to(q.dtype))
    return scores


@dataclass(frozen=True)
class _Axis:
    """One axis: its tables, the offset of each pair along it, and which pairs are on the grid."""

    terms: Terms
    offsets: Tensor  # (i, j), integers, or numbers between two rows
    on_grid: Tensor | None  # (i, j), True where neither token is of the prefix; None: everywhere

    def only_on_grid(self, x: Tensor) -> Tensor:
        """`x` with zeros where a token is of the prefix."""
        return x if self.on_grid is None else x.where(self.on_grid, 0)


def _axes(inputs: Inputs) -> list[_Axis]:
    terms, device = inputs.terms, inputs.q.device
    i, j = inputs.q.shape[2], inputs.k.shape[2]
    if isinstance(terms, Terms):
        offset = offsets(i, j, query_start=inputs.query_start, device=device)
        return [_Axis(terms, offset, None)]
    on_grid = None
    if terms.prefix:
        after_prefix = torch.arange(max(i, j), device=device) >= terms.prefix
        on_grid = after_prefix[:i, None] & after_prefix[:j]
    axes = []
    for number, axis_terms in enumerate(terms.axes):
        along = axis_offsets(terms.query_grid[number], terms.shape[number], device=device)
        offset = _pad_prefix(_expand_to_grid(along, number, terms), terms)
        axes.append(_Axis(axis_terms, offset, on_grid))
    return axes


def _expand_to_grid(along: Tensor, axis: int, terms: GridTerms) -> Tensor:
    """Offsets along one axis `(n_i, n_j)` as those of all pairs of grid tokens `(i, j)`."""
    n = len(terms.shape)
    sizes = [1] * 2 * n
    sizes[axis], sizes[n + axis] = along.shape
    full = along.view(sizes).expand(*terms.query_grid, *terms.shape)
    return full.flatten(0, n - 1).flatten(1)


def _pad_prefix(x: Tensor, terms: GridTerms) -> Tensor:
    """`x (..., i, j)` of grid tokens with zeros for the tokens before the grid."""
    return pad(x, (terms.prefix, 0, terms.prefix, 0))


def _queries_and_keys(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Queries, and keys for each query head, in the dtype of the computation."""
    dtype = wide_dtype(inputs.q)
    k = inputs.k.to(dtype).repeat_interleave(inputs.q.shape[1] // inputs.k.shape[1], dim=1)
    return inputs.q.to(dtype), k


def _axis_logits(axis: _Axis, q: Tensor, k: Tensor, scale: float) -> Tensor:
    terms, offset = axis.terms, axis.offsets
    scores = q.new_zeros(())
    if terms.keys is not None:
        p = q if terms.q_rel is None else terms.q_rel.to(q.dtype)
        scores = scores + scale * _gather_rows(
            p @ terms.keys.rows.to(q.dtype).mT, terms.keys, offset
        )
    if terms.queries is not None:
        by_row = k @ terms.queries.rows.to(q.dtype).mT
        scores = scores + scale * _gather_rows(by_row, terms.queries, offset.mT).mT
    if terms.bias is not None:
        rows = terms.bias.rows.to(q.dtype)[:, None].expand(-1, q.shape[2], -1)
        scores = scores + _gather_rows(rows, terms.bias, offset)
    return scores


def _joint_bias_logits(terms: GridTerms, joint_bias: Tensor) -> Tensor:
    """`(h or 1, i, j)`: the entry of `joint_bias` at the offsets along all axes."""
    index = 0
    for axis, size in enumerate(terms.shape):
        along = axis_offsets(size, size, device=joint_bias.device) + size - 1
        index = index * (2 * size - 1) + _expand_to_grid(along, axis, terms)
    return _pad_prefix(joint_bias.flatten(1)[:, index], terms)


def _gather_rows(
    by_row: Float[Tensor, "*batch i r"], table: OffsetTable, offset: Tensor
) -> Float[Tensor, "*batch i j"]:
    """`y[i, j] = by_row[i, row of offset[i, j]]`, linear between two rows."""
    result = by_row.new_zeros(())
    for point, weight in interpolation_points(offset):
        index, inside = row_indices(table, point)
        gathered = by_row.gather(-1, index.expand(*by_row.shape[:-2], *index.shape))
        gathered = gathered if inside is None else gathered.where(inside, 0)
        result = result + (gathered if weight is None else gathered * weight.to(gathered.dtype))
    return result


def _sum_by_row(weights: Tensor, table: OffsetTable, offset: Tensor) -> Float[Tensor, "b h i r"]:
    """`y[i, r]`: the weights of query i summed over the keys whose offset selects row r."""
    by_row = weights.new_zeros(*weights.shape[:-1], table.rows.shape[1])
    for point, weight in interpolation_points(offset):
        index, inside = row_indices(table, point)
        part = weights if inside is None else weights.where(inside, 0)
        part = part if weight is None else part * weight.to(part.dtype)
        by_row = by_row.scatter_add(-1, index.expand_as(part), part)
    return by_row
