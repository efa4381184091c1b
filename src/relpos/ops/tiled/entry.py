"""Blockwise PyTorch with its own backward: `O(L)` memory on any device."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from ...terms import GridTerms, Terms
from ..axis_terms import by_key_place, by_query_place, values_by_place
from ..inputs import Inputs
from ..transforms import refuse_transforms
from .grid import GridBlocks
from .ops import tiled_forward
from .problem import GridTensors

__all__ = ["attention", "unavailable", "unsupported"]


def unavailable() -> str | None:
    """None: plain PyTorch runs everywhere."""
    return None


def unsupported(inputs: Inputs) -> str | None:
    """Why `attention` cannot take these inputs, or None."""
    return refuse_transforms(inputs)


def attention(inputs: Inputs) -> tuple[Float[Tensor, "b h i dv"], Float[Tensor, "..."]]:
    """Output and log-sum-exp (empty unless asked for); half precision computes in float32."""
    if isinstance(inputs.terms, GridTerms):
        return _on_grid(inputs, inputs.terms)
    output, lse, _ = _call(inputs, inputs.terms)
    return output, lse


def _on_grid(inputs: Inputs, terms: GridTerms) -> tuple[Tensor, Tensor]:
    """The terms of a grid by place go in, and its weights by place come out."""
    work = torch.promote_types(inputs.q.dtype, torch.float32)
    joint_bias = terms.joint_bias
    need_places = any(axis.values is not None for axis in terms.axes)
    sizes = GridBlocks(terms.shape, terms.query_grid, terms.prefix)
    grid = GridTensors(
        sizes,
        by_key_place(inputs.q.to(work), terms, inputs.scale),
        by_query_place(inputs.k, terms, work, inputs.q.shape[1], inputs.scale),
        None if joint_bias is None else joint_bias.to(work).flatten(1),
    )
    if not need_places:
        return _call(inputs, Terms(), grid)[:2]
    # What is added to the output is not rounded before.
    dtype = inputs.q.dtype
    inputs = replace(inputs, q=inputs.q.to(work), k=inputs.k.to(work), v=inputs.v.to(work))
    output, lse, places = _call(inputs, Terms(), grid, need_places=True)
    return (output + values_by_place(places, terms)).to(dtype), lse


def _call(
    inputs: Inputs, terms: Terms, grid: GridTensors | None = None, need_places: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    tables = (terms.keys, terms.queries, terms.bias, terms.values)
    # Drawn on the CPU, from torch's own generator: no device has to be waited for.
    seed = torch.randint(1 << 62, (), device="cpu") if inputs.dropout else None
    return tiled_forward(
        inputs.q,
        inputs.k,
        inputs.v,
        *(None if table is None else table.rows for table in tables),
        terms.q_rel,
        inputs.mask,
        None if grid is None else grid.by_key,
        None if grid is None else grid.by_query,
        None if grid is None else grid.joint_bias,
        inputs.documents,
        seed,
        [0 if table is None else table.first for table in tables],
        [table is None or table.beyond == "clamp" for table in tables],
        [] if grid is None else list(grid.blocks.shape),
        [] if grid is None else list(grid.blocks.query_shape),
        0 if grid is None else grid.blocks.prefix,
        inputs.causal,
        inputs.scale,
        inputs.query_start,
        inputs.dropout,
        inputs.return_lse,
        need_places,
    )
