"""The custom ops that torch sees: opaque to `torch.compile`, differentiable once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...terms import OffsetTable, Terms
from ..transforms import check_not_batched, refuse_second_derivatives
from .backward import Gradients, backward
from .forward import forward
from .grid import GridBlocks
from .problem import GridTensors, Problem

__all__ = ["tiled_forward"]

# The tensors of a call, in the order of the ops' arguments, and those that may want gradients.
_TENSORS: tuple[str, ...] = (
    "q", "k", "v", "keys", "queries", "bias", "values", "q_rel", "mask",
    "by_key", "by_query", "joint_bias", "documents", "seed",
)  # fmt: skip
_LEARNABLE = _TENSORS[:-2]
_TABLES = ("keys", "queries", "bias", "values")
_PLAIN = tuple(name for name in _LEARNABLE if name not in _TABLES)

_ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? keys, Tensor? queries, Tensor? bias, Tensor? values, "
    "Tensor? q_rel, Tensor? mask, Tensor? by_key, Tensor? by_query, Tensor? joint, "
    "Tensor? documents, Tensor? seed, SymInt[] firsts, bool[] clamps, SymInt[] grid, "
    "SymInt[] query_grid, SymInt prefix, bool causal, float scale, SymInt query_start, "
    "float dropout"
)


def _problem(
    tensors: Sequence[Tensor | None],
    firsts: Sequence[int],
    clamps: Sequence[bool],
    grid: Sequence[int],
    query_grid: Sequence[int],
    prefix: int,
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
    on_grid = None
    if grid:
        sizes = GridBlocks(tuple(grid), tuple(query_grid), prefix)
        on_grid = GridTensors(sizes, named["by_key"], named["by_query"], named["joint_bias"])
    return Problem(
        q, k, v, Terms(**tables, q_rel=named["q_rel"]), named["mask"], named["documents"],
        on_grid, named["seed"], causal=causal, scale=scale, start=query_start, dropout=dropout,
        learn=learn,
    )  # fmt: skip


@torch.library.custom_op(
    "relpos::tiled_forward",
    mutates_args=(),
    schema=f"({_ARGUMENTS}, bool need_lse, bool need_places) -> (Tensor, Tensor, Tensor)",
)
def tiled_forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Output in q's dtype; log-sum-exp, and weights by place of a grid, empty unless needed."""
    *call, need_lse, need_places = arguments
    problem = _problem(call[: len(_TENSORS)], *call[len(_TENSORS) :])
    output, lse, places = forward(problem, need_lse, need_places)
    return output.to(call[0].dtype), lse, places


@tiled_forward.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    q, _, v = arguments[:3]
    grid = arguments[len(_TENSORS) + 2]
    need_lse, need_places = arguments[-2:]
    dtype = torch.promote_types(q.dtype, torch.float32)
    lse = q.new_empty(q.shape[:3] if need_lse else (0,), dtype=dtype)
    places = q.new_empty((*q.shape[:3], sum(grid)) if need_places else (0,), dtype=dtype)
    return q.new_empty(*q.shape[:3], v.shape[3]), lse, places


@torch.library.custom_op(
    "relpos::tiled_backward",
    mutates_args=(),
    schema=f"(Tensor d_output, Tensor? d_lse, Tensor? d_places, {_ARGUMENTS}, bool[] needs) "
    "-> Tensor[]",
)
def _tiled_backward(
    d_output: Tensor, d_lse: Tensor | None, d_places: Tensor | None, *arguments: Any
) -> list[Tensor]:
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
    gradients = Gradients(**{name: zeros.get(name) for name in _PLAIN})
    backward(problem, gradients, d_output, d_lse, d_places)
    for name in ("q", "q_rel"):
        if name in zeros:
            zeros[name] *= problem.scale
    results = {name: zero.to(tensors[name].dtype) for name, zero in zeros.items()}
    results |= {name: problem.tables[name].gradient() for name in wanted & set(_TABLES)}
    return [results[name] if name in results else d_output.new_empty(0) for name in _LEARNABLE]


@_tiled_backward.register_fake
def _(d_output: Tensor, d_lse: Tensor | None, d_places: Tensor | None, *rest: Any) -> list[Tensor]:
    needs = rest[-1]
    return [
        torch.empty_like(tensor, memory_format=torch.contiguous_format)
        if need
        else d_output.new_empty(0)
        for tensor, need in zip(rest, needs, strict=False)
    ]


_tiled_backward.register_autograd(refuse_second_derivatives("tiled"))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[: len(_TENSORS)])
    ctx.settings = inputs[len(_TENSORS) : -2]
    ctx.need_lse, ctx.need_places = inputs[-2:]


def _backward(
    ctx: Any, d_output: Tensor, d_lse: Tensor, d_places: Tensor
) -> tuple[Tensor | None, ...]:
    check_not_batched("tiled", d_output)
    needs = [bool(need) for need in ctx.needs_input_grad[: len(_LEARNABLE)]]
    gradients = _tiled_backward(
        d_output,
        d_lse if ctx.need_lse else None,
        d_places if ctx.need_places else None,
        *ctx.saved_tensors,
        *ctx.settings,
        needs,
    )
    wanted = [grad if need else None for grad, need in zip(gradients, needs, strict=True)]
    return (*wanted, *[None] * (len(ctx.needs_input_grad) - len(_LEARNABLE)))


tiled_forward.register_autograd(_backward, setup_context=_setup_context)
