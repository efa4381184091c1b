"""The custom ops that torch sees: opaque to `torch.compile`, differentiable once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...terms import OffsetTable, Terms
from .backward import Gradients, backward
from .forward import forward
from .problem import Problem

__all__ = ["tiled_forward"]

# The tensors of a call, in the order of the ops' arguments, and those that may want gradients.
_TENSORS: tuple[str, ...] = ("q", "k", "v", "keys", "bias", "values", "q_rel", "mask", "seed")
_LEARNABLE = _TENSORS[:-1]
_TABLES = ("keys", "bias", "values")

_ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? keys, Tensor? bias, Tensor? values, Tensor? q_rel, "
    "Tensor? mask, Tensor? seed, SymInt[] firsts, bool[] clamps, bool causal, float scale, "
    "SymInt query_start, float dropout"
)


def _problem(
    tensors: Sequence[Tensor | None],
    firsts: Sequence[int],
    clamps: Sequence[bool],
    causal: bool,
    scale: float,
    query_start: int,
    dropout: float,
    learn: frozenset[str] = frozenset(),
) -> Problem:
    named = dict(zip(_TENSORS, tensors, strict=True))
    tables = {
        name: OffsetTable(rows, first, "clamp" if clamp else "zero")
        for name, first, clamp in zip(_TABLES, firsts, clamps, strict=True)
        if (rows := named[name]) is not None
    }
    q, k, v = named["q"], named["k"], named["v"]
    assert q is not None
    assert k is not None
    assert v is not None
    return Problem(
        q, k, v, Terms(**tables, q_rel=named["q_rel"]), named["mask"], named["seed"],
        causal=causal, scale=scale, start=query_start, dropout=dropout, learn=learn,
    )  # fmt: skip


@torch.library.custom_op(
    "relpos::tiled_forward",
    mutates_args=(),
    schema=f"({_ARGUMENTS}, bool need_lse) -> (Tensor, Tensor)",
)
def tiled_forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp (empty unless needed) of one call, in q's dtype."""
    *call, need_lse = arguments
    problem = _problem(call[: len(_TENSORS)], *call[len(_TENSORS) :])
    output, lse = forward(problem, need_lse)
    return output.to(call[0].dtype), lse


@tiled_forward.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor]:
    q, _, v = arguments[:3]
    need_lse = arguments[-1]
    lse = q.new_empty(
        q.shape[:3] if need_lse else (0,), dtype=torch.promote_types(q.dtype, torch.float32)
    )
    return q.new_empty(*q.shape[:3], v.shape[3]), lse


@torch.library.custom_op(
    "relpos::tiled_backward",
    mutates_args=(),
    schema=f"(Tensor d_output, Tensor? d_lse, {_ARGUMENTS}, bool[] needs) -> Tensor[]",
)
def _tiled_backward(d_output: Tensor, d_lse: Tensor | None, *arguments: Any) -> list[Tensor]:
    """One gradient for each of `_LEARNABLE`; an empty tensor where none is needed."""
    *call, needs = arguments
    tensors = dict(zip(_TENSORS, call, strict=False))
    wanted = {name for name, need in zip(_LEARNABLE, needs, strict=True) if need}
    problem = _problem(
        call[: len(_TENSORS)], *call[len(_TENSORS) :], learn=frozenset(wanted & set(_TABLES))
    )
    zeros = {
        name: torch.zeros(tensors[name].shape, dtype=problem.q.dtype, device=d_output.device)
        for name in wanted.difference(_TABLES)
    }
    gradients = Gradients(**{name: zeros.get(name) for name in ("q", "k", "v", "q_rel", "mask")})
    backward(problem, gradients, d_output, d_lse)
    for name in ("q", "q_rel"):
        if name in zeros:
            zeros[name] *= problem.scale
    results = {name: zero.to(tensors[name].dtype) for name, zero in zeros.items()}
    results |= {name: problem.tables[name].gradient() for name in wanted & set(_TABLES)}
    return [results[name] if name in results else d_output.new_empty(0) for name in _LEARNABLE]


@_tiled_backward.register_fake
def _(d_output: Tensor, d_lse: Tensor | None, *arguments: Any) -> list[Tensor]:
    needs = arguments[-1]
    return [
        torch.empty_like(tensor, memory_format=torch.contiguous_format)
        if need
        else d_output.new_empty(0)
        for tensor, need in zip(arguments, needs, strict=False)
    ]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[: len(_TENSORS)])
    ctx.settings = inputs[len(_TENSORS) : -1]
    ctx.need_lse = inputs[-1]


def _backward(ctx: Any, d_output: Tensor, d_lse: Tensor) -> tuple[Tensor | None, ...]:
    needs = [bool(need) for need in ctx.needs_input_grad[: len(_LEARNABLE)]]
    gradients = _tiled_backward(
        d_output, d_lse if ctx.need_lse else None, *ctx.saved_tensors, *ctx.settings, needs
    )
    wanted = [grad if need else None for grad, need in zip(gradients, needs, strict=True)]
    return (*wanted, *[None] * (len(ctx.needs_input_grad) - len(_LEARNABLE)))


tiled_forward.register_autograd(_backward, setup_context=_setup_context)
