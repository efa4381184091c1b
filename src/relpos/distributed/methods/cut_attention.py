"""`ring`, `gather` and whole keys as one function of autograd: rows stay on their rank.

Kept for backward are this rank's shards, its output, and the softmax of its rows over all keys, by
which the gradients of each block are computed: statistics of single blocks would converge worse.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...autocast import without_autocast
from ...ops.parts import RowFlow, RowSums
from ...terms import Terms
from ..ranks.derivatives import refuse_second_derivatives
from .blocks import own_sums
from .cut_call import CutCall
from .gather import gather_backward, gather_forward
from .ring import ring_backward, ring_forward
from .whole import whole_backward, whole_forward

__all__ = ["cut_attention"]

_METHODS = {
    "ring": (ring_forward, ring_backward),
    "gather": (gather_forward, gather_backward),
    "whole": (whole_forward, whole_backward),
}


def cut_attention(call: CutCall, method: str) -> tuple[Tensor, Tensor]:
    """The output and the log-sum-exp of this rank's rows.

    Args:
        call: the call.
        method: `"ring"`, `"gather"` or `"whole"`.
    """
    tensors = _learnable(call)
    return _CutAttention.apply(call, method, tuple(tensors), *tensors.values())


def _learnable(call: CutCall) -> dict[str, Tensor]:
    """What may take a gradient, by name."""
    local = call.local
    assert isinstance(local.terms, Terms)
    found: dict[str, Tensor | None] = {"q": local.q, "k": local.k, "v": local.v}
    found |= {name: table.rows for name, table in local.terms.tables.items()}
    found |= {"q_rel": local.terms.q_rel, "mask": local.mask}
    return {name: x for name, x in found.items() if x is not None}


def _with_tensors(call: CutCall, named: dict[str, Tensor]) -> CutCall:
    """The same call of other tensors."""
    local = call.local
    assert isinstance(local.terms, Terms)
    tables = {name: replace(table, rows=named[name]) for name, table in local.terms.tables.items()}
    terms = Terms(**tables, q_rel=named.get("q_rel"))
    inputs = replace(
        local, q=named["q"], k=named["k"], v=named["v"], terms=terms, mask=named.get("mask")
    )
    return replace(call, local=inputs)


class _CutAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, call: CutCall, method: str, names: tuple[str, ...], *tensors: Tensor
    ) -> tuple[Tensor, Tensor]:
        q, _, v = tensors[:3]
        sums = RowSums.empty(q, v.shape[3])
        forward, ctx.backward_of = _METHODS[method]
        forward(_with_tensors(call, dict(zip(names, tensors, strict=True))), sums)
        output = sums.output.to(q.dtype)
        lse, softmax = sums.finish()
        # Not as it is rounded: backward subtracts it from numbers of its size.
        ctx.save_for_backward(sums.output, softmax, *tensors)
        # What it holds besides must not be kept alive after backward.
        ctx.call, ctx.names = _without_tensors(call), names
        ctx.set_materialize_grads(False)
        return output, lse

    @staticmethod
    @refuse_second_derivatives
    def backward(ctx: Any, d_output: Tensor | None, d_lse: Tensor | None) -> tuple[Any, ...]:  # type: ignore[override]
        output, softmax, *tensors = ctx.saved_tensors
        call = _with_tensors(ctx.call, dict(zip(ctx.names, tensors, strict=True)))
        if d_output is None:
            d_output = torch.zeros_like(output, dtype=tensors[0].dtype)
        flow = RowFlow(output, softmax, d_output, d_lse)
        wanted = frozenset(
            name for name, need in zip(ctx.names, ctx.needs_input_grad[3:], strict=True) if need
        )
        own = own_sums(call, wanted)
        # Backward may be called where autocast is on, as forward was not.
        with without_autocast(output):
            found = own | ctx.backward_of(call, flow, own, wanted)
        gradients = (
            found[name].to(x.dtype) if name in wanted else None
            for name, x in zip(ctx.names, tensors, strict=True)
        )
        return (None, None, None, *gradients)


def _without_tensors(call: CutCall) -> CutCall:
    """The call with one number in place of each tensor that autograd keeps."""
    return _with_tensors(
        call, {name: x.new_empty(()).expand(x.shape) for name, x in _learnable(call).items()}
    )
