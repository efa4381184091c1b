"""Blockwise PyTorch with its own backward: `O(L)` memory on any device."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ...terms import GridTerms
from ..inputs import Inputs
from .ops import tiled_forward

__all__ = ["attention", "refuse", "unavailable"]


def unavailable() -> str | None:
    """None: plain PyTorch runs everywhere."""
    return None


def refuse(inputs: Inputs) -> str | None:
    """Why `attention` cannot take these inputs, or None."""
    if isinstance(inputs.terms, GridTerms):
        return "GridTerms are not computed yet; flatten to one axis or add the bias as a mask"
    if inputs.terms.queries is not None:
        return "terms.queries (a table that meets the keys) is not computed blockwise yet"
    return None


def attention(inputs: Inputs) -> tuple[Float[Tensor, "b h i dv"], Float[Tensor, "..."]]:
    """Output and log-sum-exp (empty unless asked for); half precision computes in float32."""
    assert not isinstance(inputs.terms, GridTerms)
    terms = inputs.terms
    tables = (terms.keys, terms.bias, terms.values)
    # Drawn on the CPU, from torch's own generator: no device has to be waited for.
    seed = torch.randint(1 << 62, ()) if inputs.dropout else None
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
