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
_TENSORS = (
    "q", "k", "v", "q_rel", "mask", "key_axis_logits", "query_axis_logits", "joint_bias",
    "documents", "key_ranges", "seed",
)  # fmt: skip


def _prepared(arguments: Arguments) -> Any:
    from .prepared_call import GridShape, PreparedCall  # noqa: PLC0415

    grid = None
    if arguments.key_grid:
        keys, queries = tuple(arguments.key_grid), tuple(arguments.query_grid)
        grid = GridShape(keys, queries, arguments.prefix)
    return PreparedCall(
        {name: getattr(arguments, name) for name in _TENSORS}, arguments.terms.tables, grid,
        causal=arguments.causal, scale=arguments.scale, query_start=arguments.query_start,
        dropout=arguments.dropout, window=arguments.windows, softcap=arguments.softcap,
    )  # fmt: skip


def _forward(arguments: Arguments) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from .forward import forward  # noqa: PLC0415

    return forward(_prepared(arguments), arguments.need_axis_weights)


def _backward(arguments: Arguments, flow: Flow, wanted: frozenset[str]) -> dict[str, Tensor]:
    from .backward import backward  # noqa: PLC0415
    from .saved import Saved  # noqa: PLC0415

    call = _prepared(arguments)
    out, softmax, axis_weights = flow.saved
    saved = Saved.of(
        call, out, softmax, axis_weights, flow.d_output, flow.d_lse, flow.d_axis_weights
    )
    return backward(call, saved, wanted)


TRITON.define(_forward, _backward)
