"""Blockwise PyTorch with its own backward: `O(L)` memory on any device."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from ...terms import GridTerms
from ..inputs import Inputs
from .ops import tiled_forward

__all__ = ["attention", "refuse", "unavailable"]


def unavailable() -> str | None:
    """None: plain PyTorch runs everywhere."""
    return None


def refuse(inputs: Inputs) -> str | None:
    """Why `attention` cannot take these inputs, or None."""
    terms = inputs.terms
    if isinstance(terms, GridTerms) or inputs.documents is not None:
        return "not yet"
    if terms.queries is not None:
        return "terms.queries (a table that meets the keys) is not computed blockwise yet"
    rows = [table.rows for table in terms.tables.values()]
    tensors = (inputs.q, inputs.k, inputs.v, inputs.mask, terms.q_rel, *rows)
    if any(tensor is not None and unpack_dual(tensor).tangent is not None for tensor in tensors):
        return "forward-mode derivatives are not computed blockwise"
    return None


def attention(inputs: Inputs) -> tuple[Float[Tensor, "b h i dv"], Float[Tensor, "..."]]:
    """Output and log-sum-exp (empty unless asked for); half precision computes in float32."""
    terms = inputs.terms
    tables = (terms.keys, terms.bias, terms.values)
    # Drawn on the CPU, from torch's own generator: no device has to be waited for.
    seed = torch.randint(1 << 62, (), device="cpu") if inputs.dropout else None
    return tiled_forward(
        inputs.q,
        inputs.k,
        inputs.v,
        *(None if table is None else table.rows for table in tables),
        terms.q_rel,
        inputs.mask,
        seed,
        [0 if table is None else table.first for table in tables],
        [table is None or table.beyond == "clamp" for table in tables],
        inputs.causal,
        inputs.scale,
        inputs.query_start,
        inputs.dropout,
        inputs.return_lse,
    )
