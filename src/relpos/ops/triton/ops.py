"""The custom ops that torch sees: opaque to `torch.compile`, differentiable once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...terms import OffsetTable
from ..transforms import check_not_batched, refuse_second_derivatives

__all__ = ["triton_forward"]

# The tensors of a call, in the order of the ops' arguments, and those that may want gradients.
_TENSORS: tuple[str, ...] = (
    "q", "k", "v", "keys", "queries", "bias", "values", "q_rel", "mask",
    "key_axis_logits", "query_axis_logits", "joint_bias", "documents", "seed",
)  # fmt: skip
_LEARNABLE = _TENSORS[:-2]
_TABLES = ("keys", "queries", "bias", "values")

_ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? keys, Tensor? queries, Tensor? bias, Tensor? values, "
    "Tensor? q_rel, Tensor? mask, Tensor? by_key, Tensor? by_query, Tensor? joint, "
    "Tensor? documents, Tensor? seed, SymInt[] firsts, int[] zeros, SymInt[] grid, "
    "SymInt[] query_grid, SymInt prefix, bool causal, float scale, SymInt query_start, "
    "float dropout"
)


def _problem(
    tensors: Sequence[Tensor | None],
    firsts: Sequence[int],
    zeros: Sequence[int],
    grid: Sequence[int],
    query_grid: Sequence[int],
    prefix: int,
    causal: bool,
    scale: float,
    query_start: int,
    dropout: float,
) -> Any:
    from .prepared_call import GridShape, PreparedCall  # noqa: PLC0415

    named = dict(zip(_TENSORS, tensors, strict=True))
    tables = {
        name: OffsetTable(rows, first, "zero" if zero else "clamp")
        for name, first, zero in zip(_TABLES, firsts, zeros, strict=True)
        if (rows := named[name]) is not None
    }
    on_grid = GridShape(tuple(grid), tuple(query_grid), prefix) if grid else None
    return PreparedCall(
        named, tables, on_grid, causal=causal, scale=scale, start=query_start, dropout=dropout
    )


@torch.library.custom_op(
    "relpos::triton_forward",
    mutates_args=(),
    schema=f"({_ARGUMENTS}, bool need_places) -> (Tensor, Tensor, Tensor, Tensor)",
)
def triton_forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Output, log-sum-exp, what backward needs of the softmax, and weights by place of a grid.

    The output is in q's dtype, or in float32 with weights by place, which are empty unless needed.
    """
    from .forward import forward  # noqa: PLC0415

    *call, need_places = arguments
    return forward(_problem(call[: len(_TENSORS)], *call[len(_TENSORS) :]), need_places)


@triton_forward.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q, _, v = arguments[:3]
    grid, need_places = arguments[len(_TENSORS) + 2], arguments[-1]
    rows = q.shape[:3]
    wide = torch.float32
    return (
        q.new_empty((*rows, v.shape[3]), dtype=wide if need_places else q.dtype),
        q.new_empty(rows, dtype=wide),
        q.new_empty((2, *rows), dtype=wide),
        q.new_empty((*rows, sum(grid)) if need_places else (0,), dtype=wide),
    )


@torch.library.custom_op(
    "relpos::triton_backward",
    mutates_args=(),
    schema="(Tensor d_output, Tensor? d_lse, Tensor? d_places, Tensor output, Tensor softmax, "
    f"Tensor places, {_ARGUMENTS}, bool[] needs) -> Tensor[]",
)
def _triton_backward(*arguments: Any) -> list[Tensor]:
    """One gradient for each of `_LEARNABLE`; an empty tensor where none is needed."""
    from .backward import backward  # noqa: PLC0415
    from .saved import Saved  # noqa: PLC0415

    d_output, d_lse, d_places, output, softmax, places = arguments[:6]
    *call, needs = arguments[6:]
    tensors = dict(zip(_TENSORS, call, strict=False))
    wanted = frozenset(name for name, need in zip(_LEARNABLE, needs, strict=True) if need)
    problem = _problem(call[: len(_TENSORS)], *call[len(_TENSORS) :])
    saved = Saved.of(problem, output, softmax, places, d_output, d_lse, d_places)
    found = backward(problem, saved, wanted)
    return [
        found[name].to(tensors[name].dtype) if name in wanted else d_output.new_empty(0)
        for name in _LEARNABLE
    ]


@_triton_backward.register_fake
def _(*arguments: Any) -> list[Tensor]:
    tensors, needs = arguments[6:], arguments[-1]
    return [
        torch.empty_like(tensor, memory_format=torch.contiguous_format)
        if need
        else arguments[0].new_empty(0)
        for tensor, need in zip(tensors, needs, strict=False)
    ]


_triton_backward.register_autograd(refuse_second_derivatives("triton"))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    attended, _, softmax, places = output
    ctx.mark_non_differentiable(softmax)
    ctx.save_for_backward(attended, softmax, places, *inputs[: len(_TENSORS)])
    ctx.settings = inputs[len(_TENSORS) : -1]
    ctx.need_places = inputs[-1]
    ctx.set_materialize_grads(False)


def _backward(
    ctx: Any, d_output: Tensor | None, d_lse: Tensor | None, _: None, d_places: Tensor | None
) -> tuple[Tensor | None, ...]:
    check_not_batched("triton", d_lse if d_output is None else d_output)
    output, softmax, places, *tensors = ctx.saved_tensors
    needs = [bool(need) for need in ctx.needs_input_grad[: len(_LEARNABLE)]]
    if d_output is None:
        d_output = output.new_zeros(()).expand_as(output)
    gradients = _triton_backward(
        d_output,
        d_lse,
        d_places if ctx.need_places else None,
        output,
        softmax,
        places,
        *tensors,
        *ctx.settings,
        needs,
    )
    wanted = [grad if need else None for grad, need in zip(gradients, needs, strict=True)]
    return (*wanted, *[None] * (len(ctx.needs_input_grad) - len(_LEARNABLE)))


triton_forward.register_autograd(_backward, setup_context=_setup_context)
