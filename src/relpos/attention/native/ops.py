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
    "by_key", "by_query", "joint", "documents", "seed",
)  # fmt: skip
_LEARNABLE = _TENSORS[:-2]
_BY_PLACE = ("by_key", "by_query")  # whose gradients come for each head of the batch
_IN_FLOAT32 = ("mask", "by_key", "by_query", "joint")  # whose gradients come so


def native_forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Output, log-sum-exp, and weights by place of a grid (empty unless needed), in float32."""
    return torch.ops.relpos.native_forward(*arguments)[:3]


def _fake_forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q, _, v = arguments[:3]
    grid, need_places = arguments[len(_TENSORS) + 2], arguments[-1]
    rows = q.shape[:3]
    places = (*rows, sum(grid)) if need_places else (0,)
    shapes = ((*rows, v.shape[3]), rows, places, (2, *rows))
    output, lse, by_place, softmax = (q.new_empty(shape, dtype=torch.float32) for shape in shapes)
    return output, lse, by_place, softmax


def _fake_backward(*arguments: Any) -> list[Tensor]:
    tensors, needs = arguments[6 : 6 + len(_LEARNABLE)], arguments[-1]
    q = tensors[0]
    results = []
    for name, tensor, need in zip(_LEARNABLE, tensors, needs, strict=True):
        shape = tensor.shape if need else (0,)
        if need and name in _BY_PLACE:
            shape = (*q.shape[:2], *tensor.shape[2:])
        dtype = q.dtype if need and name not in _IN_FLOAT32 else torch.float32
        results.append(q.new_empty(shape, dtype=dtype))
    return results


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    attended, _, places, softmax = output
    ctx.mark_non_differentiable(softmax)
    ctx.save_for_backward(attended, places, softmax, *inputs[: len(_TENSORS)])
    ctx.settings = inputs[len(_TENSORS) : -1]
    ctx.set_materialize_grads(False)


def _backward(
    ctx: Any, d_output: Tensor | None, d_lse: Tensor | None, d_places: Tensor | None, _: None
) -> tuple[Tensor | None, ...]:
    check_not_batched("native", d_lse if d_output is None else d_output)
    output, places, softmax, *tensors = ctx.saved_tensors
    needs = [int(need) for need in ctx.needs_input_grad[: len(_LEARNABLE)]]
    if d_output is None:
        d_output = output.new_zeros(()).expand_as(output)
    if places.numel() == 0:
        d_places = None
    results = torch.ops.relpos.native_backward(
        d_output, d_lse, d_places, output, places, softmax, *tensors, *ctx.settings, needs
    )
    gradients = [
        _like(tensor, result) if need else None
        for tensor, result, need in zip(tensors, results, needs, strict=False)
    ]
    return (*gradients, *[None] * (len(ctx.needs_input_grad) - len(_LEARNABLE)))


def _like(tensor: Tensor, gradient: Tensor) -> Tensor:
    """A gradient summed over what was broadcast, in the tensor's dtype."""
    return gradient.sum_to_size(tensor.shape).to(tensor.dtype)


if MISSING is None:
    torch.library.register_fake("relpos::native_forward", _fake_forward)
    torch.library.register_fake("relpos::native_backward", _fake_backward)
    torch.library.register_autograd(
        "relpos::native_forward", _backward, setup_context=_setup_context
    )
    torch.library.register_autograd("relpos::native_backward", refuse_second_derivatives("native"))
