"""Calling a backend that takes a grid's relative logits per axis, which autograd differentiates."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ..terms import Terms
from .axis_terms import axis_values, key_axis_logits, query_axis_logits
from .custom_op import CustomOp
from .inputs import Inputs, wide_dtype

__all__ = ["attention_by_axis_logits"]


def attention_by_axis_logits(
    op: CustomOp, inputs: Inputs, logits_of: Callable[[Inputs], Tensor | None] | None = None
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp; on a grid, logits per axis go in and weights per axis come out.

    Args:
        op: of the backend.
        inputs: the call.
        logits_of: what the axes add to the queries' logits, `key_axis_logits` by the backend's own
            means; None: it has none.
    """
    terms = inputs.terms
    if isinstance(terms, Terms):
        found = op(inputs)
        return found["output"], found["lse"]
    q, k, wide = inputs.q, inputs.k, wide_dtype(inputs.q)
    with_values = any(axis.values is not None for axis in terms.axes)
    found = op(
        inputs,
        key_axis_logits=logits_of(inputs)
        if logits_of
        else key_axis_logits(q.to(wide), terms, inputs.scale),
        query_axis_logits=query_axis_logits(k, terms, wide, q.shape[1], inputs.scale),
        joint_bias=None if terms.joint_bias is None else terms.joint_bias.to(wide).flatten(1),
        need_axis_weights=with_values,
    )
    output = found["output"]
    if with_values:
        output = (output + axis_values(found["axis_weights"], terms)).to(q.dtype)
    return output, found["lse"]
