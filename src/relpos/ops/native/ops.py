"""What torch must know of the kernel's operators: shapes for tracing, and derivatives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..transforms import check_not_batched, refuse_second_derivatives
from .library import MISSING

__all__ = ["native_forward"]

# The tensors of a call, in the order of the ops' arguments, and those that may want gradients.
_TENSORS: tuple[str, ...] = (
    "q", "k", "v", "keys", "queries", "bias", "values", "q_rel", "mask",
    "axis_tables", "by_query", "joint_bias", "documents", "seed",
)  # fmt: skip
_LEARNABLE = _TENSORS[:-2]
_IN_FLOAT32 = ("mask", "axis_tables", "by_query", "joint_bias")  # whose gradients come so


def native_forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp, in float32."""
    return torch.ops.relpos.native_forward(*arguments)[:2]


def _fake_forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    q, _, v = arguments[:3]
    rows = q.shape[:3]
    shapes = ((*rows, v.shape[3]), rows, (2, *rows))
    output, lse, softmax = (q.new_empty(shape, dtype=torch.float32) for shape in shapes)
    return output, lse, softmax


def _fake_backward(*arguments: Any) -> list[Tensor]:
    tensors, needs = arguments[4 : 4 + len(_LEARNABLE)], arguments[-1]
    q = tensors[0]
    results = []
    for name, tensor, need in zip(_LEARNABLE, tensors, needs, strict=True):
        dtype = q.dtype if need and name not in _IN_FLOAT32 else torch.float32
        results.append(q.new_empty(tensor.shape if need else (0,), dtype=dtype))
    return results


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    attended, _, softmax = output
    ctx.mark_non_differentiable(softmax)
    ctx.save_for_backward(attended, softmax, *inputs[: len(_TENSORS)])
    ctx.settings = inputs[len(_TENSORS) :]
    ctx.set_materialize_grads(False)


def _backward(
    ctx: Any, d_output: Tensor | None, d_lse: Tensor | None, _: None
) -> tuple[Tensor | None, ...]:
    check_not_batched("native", d_lse if d_output is None else d_output)
    output, softmax, *tensors = ctx.saved_tensors
    needs = [int(need) for need in ctx.needs_input_grad[: len(_LEARNABLE)]]
    if d_output is None:
        d_output = output.new_zeros(()).expand_as(output)
    results = torch.ops.relpos.native_backward(
        d_output, d_lse, output, softmax, *tensors, *ctx.settings, needs
    )
    gradients = [
        result.to(tensor.dtype) if need else None
        for tensor, result, need in zip(tensors, results, needs, strict=False)
    ]
    return (*gradients, *[None] * (len(ctx.needs_input_grad) - len(_LEARNABLE)))


if MISSING is None:
    torch.library.register_fake("relpos::native_forward", _fake_forward)
    torch.library.register_fake("relpos::native_backward", _fake_backward)
    torch.library.register_autograd(
        "relpos::native_forward", _backward, setup_context=_setup_context
    )
    torch.library.register_autograd("relpos::native_backward", refuse_second_derivatives("native"))
