"""A grid's relative logits for queries for torch. Triton is imported when one first runs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...autocast import without_autocast
from ...terms import GridTerms
from ..axis_pairs import AxisRows, logits_of_rows
from ..axis_terms import key_axis_logits, rows_of_pairs
from ..inputs import Inputs, wide_dtype
from ..second_derivatives import Named, derivatives_of_gradients
from ..torch_dispatcher import may_pass_by_dispatcher
from ..transforms import check_not_batched

__all__ = ["axis_logits_of"]

_MOST_PAIRS = 4
_ARGUMENTS = "Tensor q, Tensor[] rows, SymInt[] grid, SymInt prefix, float scale"


def axis_logits_of(inputs: Inputs) -> Tensor | None:
    """What `axis_terms.key_axis_logits` gives, in 32 bits; None if zero.

    Of 16 bits a kernel makes them, where nothing but keys is to be multiplied, along axes that are
    not long beside the others: it takes a row for each pair of coordinates.
    """
    terms, q = inputs.terms, inputs.q
    assert isinstance(terms, GridTerms)
    wide = wide_dtype(q)
    if q.dtype == wide or not (_has_keys_alone(terms) and _has_short_axes(terms)):
        return key_axis_logits(q.to(wide), terms, inputs.scale)
    rows = [
        rows_of_pairs(axis.keys, size, size, wide)
        for axis, size in zip(terms.axes, terms.shape, strict=True)
        if axis.keys is not None
    ]
    return _logits(q, rows, terms.shape, terms.prefix, inputs.scale)


def _has_keys_alone(terms: GridTerms) -> bool:
    """Whether all axes have a table of keys and no bias, for the queries themselves."""
    return terms.query_grid == terms.shape and all(
        axis.keys is not None and axis.q_rel is None and axis.bias is None for axis in terms.axes
    )


def _has_short_axes(terms: GridTerms) -> bool:
    """Whether no axis has more pairs of coordinates than `_MOST_PAIRS` for each token."""
    return max(terms.shape) ** 2 <= _MOST_PAIRS * prod(terms.shape)


def _logits(
    q: Tensor, rows: Sequence[Tensor], grid: Sequence[int], prefix: int, scale: float
) -> Tensor:
    """By the operator, where somebody is to be told of it (`custom_op.py`)."""
    tensors = (q, *rows)
    if not may_pass_by_dispatcher(tensors):
        return _axis_logits(q, rows, grid, prefix, scale)
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        return _AxisLogits.apply(grid, prefix, scale, *tensors)
    return _computations().axis_logits(q, rows, grid, prefix, scale)


@cache
def _computations() -> ModuleType:
    from . import axis_logits  # noqa: PLC0415

    return axis_logits


class _AxisLogits(torch.autograd.Function):
    """The operator without torch's own way to its derivative."""

    @staticmethod
    def forward(
        ctx: Any, grid: Sequence[int], prefix: int, scale: float, q: Tensor, *rows: Tensor
    ) -> Tensor:
        ctx.settings = grid, prefix, scale
        ctx.save_for_backward(q, *rows)
        return _computations().axis_logits(q, rows, grid, prefix, scale)

    @staticmethod
    def backward(ctx: Any, d_logits: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        needs = ctx.needs_input_grad[3], any(ctx.needs_input_grad[4:])
        d_q, d_rows = _gradients(ctx, d_logits, *needs)
        return None, None, None, d_q, *d_rows


def _gradients(
    ctx: Any, d_logits: Tensor, needs_q: bool, needs_rows: bool
) -> tuple[Tensor | None, Sequence[Tensor | None]]:
    """The gradients of `q` and of each axis's rows, None where they are not needed."""
    check_not_batched("triton", d_logits)
    q, *rows = ctx.saved_tensors
    passes_by = may_pass_by_dispatcher((d_logits,)) and not torch.is_grad_enabled()
    # Else by the operator, which can be differentiated again.
    run = _computations().axis_logits_gradients if passes_by else _axis_logits_backward
    d_q, d_rows = run(d_logits, q, rows, *ctx.settings, needs_q, needs_rows)
    return d_q if needs_q else None, d_rows if needs_rows else [None] * len(rows)


@torch.library.custom_op(
    "relpos::triton_axis_logits", mutates_args=(), schema=f"({_ARGUMENTS}) -> Tensor"
)
def _axis_logits(
    q: Tensor, rows: Sequence[Tensor], grid: Sequence[int], prefix: int, scale: float
) -> Tensor:
    return _computations().axis_logits(q, rows, grid, prefix, scale)


@torch.library.custom_op(
    "relpos::triton_axis_logits_backward",
    mutates_args=(),
    schema=f"(Tensor d_logits, {_ARGUMENTS}, bool needs_q, bool needs_rows) -> (Tensor, Tensor[])",
)
def _axis_logits_backward(
    d_logits: Tensor, q: Tensor, rows: Sequence[Tensor], grid: Sequence[int], prefix: int,
    scale: float, needs_q: bool, needs_rows: bool,
) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
    return _computations().axis_logits_gradients(
        d_logits, q, rows, grid, prefix, scale, needs_q, needs_rows
    )


@torch.library.register_fake("relpos::triton_axis_logits")
def _fake(
    q: Tensor, rows: Sequence[Tensor], grid: Sequence[int], prefix: int, scale: float
) -> Tensor:
    return q.new_empty((*q.shape[:3], sum(grid)), dtype=torch.float32)


@torch.library.register_fake("relpos::triton_axis_logits_backward")
def _fake_backward(
    d_logits: Tensor, q: Tensor, rows: Sequence[Tensor], grid: Sequence[int], prefix: int,
    scale: float, needs_q: bool, needs_rows: bool,
) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
    d_q = q.new_empty(q.shape if needs_q else (0,))
    return d_q, [x.new_empty(x.shape, dtype=torch.float32) for x in rows if needs_rows]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    q, rows, *ctx.settings = inputs
    ctx.save_for_backward(q, *rows)


def _differentiate(ctx: Any, d_logits: Tensor) -> tuple[Any, ...]:
    needs = ctx.needs_input_grad[0], any(ctx.needs_input_grad[1])
    return *_gradients(ctx, d_logits, *needs), None, None, None


torch.library.register_autograd(_axis_logits, _differentiate, setup_context=_setup)


def _setup_again(ctx: Any, inputs: tuple[Any, ...], output: object) -> None:
    d_logits, q, rows, *ctx.settings = inputs
    ctx.save_for_backward(d_logits, q, *rows)
    ctx.set_materialize_grads(False)


def _differentiate_again(
    ctx: Any, d_dq: Tensor | None, d_drows: Sequence[Tensor | None]
) -> tuple[Any, ...]:
    check_not_batched("triton", d_dq, *d_drows)
    d_logits, q, *rows = ctx.saved_tensors
    grid, prefix, scale, needs_q, needs_rows = ctx.settings
    names = [f"rows {number}" for number in range(len(rows))]

    def compute(inputs: Named) -> Named:
        axes = [AxisRows(keys=inputs[name]) for name in names]
        parts = logits_of_rows(inputs["q"], axes, grid, prefix, scale)
        logits = torch.cat([part for part in parts if part is not None], -1)
        return {"logits": pad(logits, (0, 0, prefix, 0))}

    inputs = {"q": q, **dict(zip(names, rows, strict=True))}
    of_rows = dict(zip(names, d_drows, strict=True)) if needs_rows else {}
    d_gradients = {name: x for name, x in of_rows.items() if x is not None}
    if needs_q and d_dq is not None:
        d_gradients["q"] = d_dq
    with without_autocast(q):
        found = derivatives_of_gradients(
            compute,
            {name: x.to(d_logits.dtype) for name, x in inputs.items()},
            {"logits": d_logits},
            d_gradients,
        )
    cast = {name: x.to(inputs[name].dtype) for name, x in found.items() if name in inputs}
    d_rows = [cast.get(name) for name in names]
    return found.get("d_logits"), cast.get("q"), d_rows, None, None, None, None, None


torch.library.register_autograd(
    _axis_logits_backward, _differentiate_again, setup_context=_setup_again
)
