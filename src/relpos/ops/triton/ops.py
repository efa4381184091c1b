"""The operators that torch sees of this backend. Triton is imported when one first runs."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..arguments import AXIS_TABLES, Arguments
from ..custom_op import CustomOp, Flow

__all__ = ["TRITON"]

TRITON = CustomOp(
    "triton",
    results=("output", "lse", "softmax", "axis_weights"),
    saved=("output", "softmax", "axis_weights"),
    without=(*AXIS_TABLES, "return_lse"),
    seed_on=None,  # nothing waits, and a captured graph draws anew each time
)


def _problem(arguments: Arguments) -> Any:
    from .problem import Grid, Problem  # noqa: PLC0415

    names = ("q", "k", "v", "q_rel", "mask", "joint_bias", "documents", "seed")
    tensors = {name: getattr(arguments, name) for name in names} | {
        "by_key": arguments.key_axis_logits,
        "by_query": arguments.query_axis_logits,
    }
    grid = None
    if arguments.key_grid:
        shape, query_shape = tuple(arguments.key_grid), tuple(arguments.query_grid)
        grid = Grid(shape, query_shape, arguments.prefix)
    return Problem(
        tensors, arguments.terms.tables, grid, causal=arguments.causal, scale=arguments.scale,
        start=arguments.query_start, dropout=arguments.dropout,
    )  # fmt: skip


def _forward(arguments: Arguments) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from .launch import forward  # noqa: PLC0415

    return forward(_problem(arguments), arguments.need_axis_weights)


def _backward(arguments: Arguments, flow: Flow, wanted: frozenset[str]) -> dict[str, Tensor]:
    from .launch import Saved, backward  # noqa: PLC0415

    problem = _problem(arguments)
    saved = Saved.of(problem, *flow.saved, flow.d_output, flow.d_lse, flow.d_axis_weights)
    renamed = {"key_axis_logits": "by_key", "query_axis_logits": "by_query"}
    names = {name: renamed.get(name, name) for name in wanted}
    found = backward(problem, saved, frozenset(names.values()))
    return {name: found[label] for name, label in names.items()}


TRITON.define(_forward, _backward)
