"""The compiled kernel for the CPU: `O(L)` memory, all terms in the tiles that lie in cache."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ...terms import GridTerms, Terms
from ..inputs import Inputs
from ..places import by_key_place, by_query_place, values_by_place
from ..transforms import refuse_transforms
from .library import MISSING
from .ops import native_forward

__all__ = ["attention", "refuse", "unavailable"]

_MOST_AXES = 8  # of a grid: kMostAxes in csrc/call.h
_ON_A_LINE: tuple[None, ...] = (None,) * 3  # no terms by place


def unavailable() -> str | None:
    """Why the kernel is not there, or None."""
    return MISSING


def refuse(inputs: Inputs) -> str | None:
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
        return _on_grid(inputs, inputs.terms)
    output, lse, _ = _call(inputs, inputs.terms)
    return output.to(inputs.q.dtype), lse


def _on_grid(inputs: Inputs, terms: GridTerms) -> tuple[Tensor, Tensor]:
    """The terms of a grid by place go in, and its weights by place come out."""
    q, k = inputs.q, inputs.k
    by_query = by_query_place(k.float(), terms, q.shape[1], inputs.scale)
    on_grid = (
        by_key_place(q.float(), terms, inputs.scale),
        None if by_query is None else by_query.mT.contiguous(),
        None if terms.joint is None else terms.joint.float().flatten(1),
    )
    if all(axis.values is None for axis in terms.axes):
        output, lse, _ = _call(inputs, Terms(), terms, on_grid)
    else:
        output, lse, places = _call(inputs, Terms(), terms, on_grid, need_places=True)
        output = output + values_by_place(places, terms)
    return output.to(q.dtype), lse


def _call(
    inputs: Inputs,
    terms: Terms,
    grid: GridTerms | None = None,
    on_grid: tuple[Tensor | None, ...] = _ON_A_LINE,
    need_places: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    tables = (terms.keys, terms.queries, terms.bias, terms.values)
    mask = inputs.mask
    if mask is not None and mask.dtype == torch.float64:
        mask = mask.float()
    # Drawn from torch's own generator.
    seed = torch.randint(1 << 62, (), device="cpu") if inputs.dropout else None
    return native_forward(
        inputs.q,
        inputs.k,
        inputs.v,
        *(None if table is None else table.rows for table in tables),
        terms.q_rel,
        mask,
        *on_grid,
        inputs.documents,
        seed,
        [0 if table is None else table.first for table in tables],
        [int(table is not None and table.beyond == "zero") for table in tables],
        [] if grid is None else list(grid.shape),
        [] if grid is None else list(grid.query_grid),
        0 if grid is None else grid.prefix,
        inputs.causal,
        inputs.scale,
        inputs.query_start,
        inputs.dropout,
        need_places,
    )
