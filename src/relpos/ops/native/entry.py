"""The compiled kernel for the CPU: `O(L)` memory, all terms in the tiles that lie in cache."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ...terms import GridTerms, Terms
from ..axis_terms import axis_tables, by_query_place
from ..inputs import Inputs
from ..transforms import refuse_transforms
from .library import MISSING
from .ops import native_forward

__all__ = ["attention", "unavailable", "unsupported"]

_MOST_AXES = 8  # of a grid: kMaxAxes in csrc/params.h


def unavailable() -> str | None:
    """Why the kernel is not there, or None."""
    return MISSING


def unsupported(inputs: Inputs) -> str | None:
    """Why `attention` cannot take these inputs, or None."""
    if inputs.q.device.type != "cpu":
        return f"it runs on the CPU, not on {inputs.q.device.type}"
    if inputs.q.dtype == torch.float64:
        return "it computes in float32, which is not enough for float64"
    if isinstance(inputs.terms, GridTerms) and len(inputs.terms.shape) > _MOST_AXES:
        return f"its grids have at most {_MOST_AXES} axes"
    return refuse_transforms(inputs)


def attention(inputs: Inputs) -> tuple[Float[Tensor, "b h i dv"], Float[Tensor, "..."]]:
    """Output and log-sum-exp; half precision computes in float32."""
    if isinstance(inputs.terms, GridTerms):
        output, lse = _on_grid(inputs, inputs.terms)
    else:
        output, lse = _on_a_line(inputs, inputs.terms)
    return output.to(inputs.q.dtype), lse


def _on_a_line(inputs: Inputs, terms: Terms) -> tuple[Tensor, Tensor]:
    tables = (terms.keys, terms.queries, terms.bias, terms.values)
    return native_forward(
        *(inputs.q, inputs.k, inputs.v),
        *(None if table is None else table.rows for table in tables),
        terms.q_rel,
        _mask(inputs),
        *(None, None, None),  # of a grid
        inputs.documents,
        _seed(inputs),
        [0 if table is None else table.first for table in tables],
        [int(table is not None and table.beyond == "zero") for table in tables],
        *([], [], [], [], [], [], 0),  # of a grid
        *_settings(inputs),
    )


def _on_grid(inputs: Inputs, terms: GridTerms) -> tuple[Tensor, Tensor]:
    q, k = inputs.q, inputs.k
    by_query = by_query_place(k, terms, torch.float32, q.shape[1], inputs.scale)
    own_p = [axis.q_rel for axis in terms.axes if axis.q_rel is not None]
    return native_forward(
        *(q, k, inputs.v),
        *(None, None, None, None),  # of a line
        torch.cat(own_p, -1) if own_p else None,
        _mask(inputs),
        axis_tables(terms),
        None if by_query is None else by_query.mT.contiguous(),
        None if terms.joint_bias is None else terms.joint_bias.float().flatten(1),
        inputs.documents,
        _seed(inputs),
        *([0] * 4, [0] * 4),  # of a line
        list(terms.shape),
        list(terms.query_grid),
        [0 if axis.keys is None else axis.keys.rows.shape[2] for axis in terms.axes],
        [int(axis.q_rel is not None) for axis in terms.axes],
        [int(axis.bias is not None) for axis in terms.axes],
        [int(axis.values is not None) for axis in terms.axes],
        terms.prefix,
        *_settings(inputs),
    )


def _mask(inputs: Inputs) -> Tensor | None:
    mask = inputs.mask
    return mask.float() if mask is not None and mask.dtype == torch.float64 else mask


def _seed(inputs: Inputs) -> Tensor | None:
    """Drawn from torch's own generator."""
    return torch.randint(1 << 62, (), device="cpu") if inputs.dropout else None


def _settings(inputs: Inputs) -> tuple[bool, float, int, float]:
    return inputs.causal, inputs.scale, inputs.query_start, inputs.dropout
