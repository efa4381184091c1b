"""Fused Triton kernels for CUDA: `O(L)` memory, all terms in the tiles, gradients without atomics.

Triton itself is imported when the op first runs.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch
from jaxtyping import Float
from torch import Tensor

from ...terms import GridTerms, Terms
from ..axis_terms import by_key_place, by_query_place, values_by_place
from ..inputs import Inputs
from ..transforms import refuse_transforms
from .ops import triton_forward

__all__ = ["attention", "unavailable", "unsupported"]

_INSTALLED = find_spec("triton") is not None
# As Triton itself does, which reads it when its functions are made.
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_WIDEST = 256
_MOST_PLACES = 512


def unavailable() -> str | None:
    """Why the kernels cannot run on this machine, or None."""
    if not _INSTALLED:
        return "triton is not installed"
    if not _INTERPRETED and not torch.cuda.is_available():
        return "there is no CUDA device (for tests, TRITON_INTERPRET=1 runs it on the CPU)"
    if torch.version.hip is not None:
        return "its kernels are for NVIDIA's GPUs"
    return None


def unsupported(inputs: Inputs) -> str | None:
    """Why `attention` cannot take these inputs, or None."""
    q = inputs.q
    wanted = "cpu" if _INTERPRETED else "cuda"
    if q.device.type != wanted:
        return f"it runs on {wanted}, not on {q.device.type}"
    if q.dtype == torch.float64:
        return "it computes in float32, which is not enough for float64"
    if _INTERPRETED and q.dtype == torch.bfloat16:
        return "Triton's interpreter multiplies bfloat16 wrongly"
    if not _INTERPRETED and torch.cuda.get_device_capability(q.device) < (8, 0):
        return "it needs a GPU of compute capability 8.0 or higher"
    return _too_wide(inputs) or refuse_transforms(inputs)


def _too_wide(inputs: Inputs) -> str | None:
    """Why a tile would not fit into registers, or None."""
    terms, tables = inputs.terms, []
    if isinstance(terms, Terms):
        tables = terms.tensors
    elif max(sum(terms.shape), sum(terms.query_grid)) > _MOST_PLACES:
        return f"its grids have at most {_MOST_PLACES} places on all axes together"
    widths = [x.shape[3] for x in (inputs.q, inputs.v)]
    if max(widths + [x.shape[-1] for x in tables if x.ndim > 2]) > _WIDEST:
        return f"its heads are at most {_WIDEST} wide"
    return None


def attention(inputs: Inputs) -> tuple[Float[Tensor, "b h i dv"], Float[Tensor, "b h i"]]:
    """Output and log-sum-exp; products in the inputs' dtype, sums in float32."""
    if isinstance(inputs.terms, GridTerms):
        return _on_grid(inputs, inputs.terms)
    output, lse, _ = _call(inputs, inputs.terms)
    return output, lse


def _on_grid(inputs: Inputs, terms: GridTerms) -> tuple[Tensor, Tensor]:
    """The terms of a grid by place go in, and its weights by place come out."""
    q, k = inputs.q, inputs.k
    need_places = any(axis.values is not None for axis in terms.axes)
    output, lse, places = _call(
        inputs,
        Terms(),
        by_key_place(q.float(), terms, inputs.scale),
        by_query_place(k, terms, torch.float32, q.shape[1], inputs.scale),
        None if terms.joint_bias is None else terms.joint_bias.flatten(1),
        terms,
        need_places,
    )
    if need_places:
        output = (output + values_by_place(places, terms)).to(q.dtype)
    return output, lse


def _call(
    inputs: Inputs,
    terms: Terms,
    by_key: Tensor | None = None,
    by_query: Tensor | None = None,
    joint_bias: Tensor | None = None,
    grid: GridTerms | None = None,
    need_places: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    tables = (terms.keys, terms.queries, terms.bias, terms.values)
    mask, device = inputs.mask, inputs.q.device
    if mask is not None and mask.dtype == torch.float64:
        mask = mask.float()
    # From the device's own generator: nothing waits, and a captured graph draws anew each time.
    seed = torch.randint(1 << 62, (), device=device) if inputs.dropout else None
    output, lse, _, places = triton_forward(
        inputs.q,
        inputs.k,
        inputs.v,
        *(None if table is None else table.rows for table in tables),
        terms.q_rel,
        mask,
        by_key,
        by_query,
        joint_bias,
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
    return output, lse, places
