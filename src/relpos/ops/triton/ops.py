"""The operators that torch sees of this backend. Triton is imported when one first runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import log
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from ..arguments import AXIS_TABLES, Arguments
from ..custom_op import CustomOp, Flow
from ..inputs import DropoutOrigin

if TYPE_CHECKING:
    from .call_traits import GridShape
    from .prepared_call import PreparedCall
    from .saved import Saved

__all__ = ["TRITON", "logits_of_row_max"]

TRITON = CustomOp(
    "triton",
    results=("output", "lse", "softmax", "axis_weights"),
    saved=("output", "softmax", "axis_weights"),
    without=(*AXIS_TABLES, "split_float32", "return_lse"),
    seed_on=None,  # nothing waits, and a captured graph draws anew each time
)
_TENSORS = (
    "q", "k", "v", "q_rel", "mask", "key_axis_logits", "query_axis_logits", "joint_bias",
    "documents", "query_documents", "key_ranges", "seed",
)  # fmt: skip
_tensors_of = attrgetter(*_TENSORS)


class _Package(NamedTuple):
    """What this operator runs, which imports Triton."""

    call: type[PreparedCall]
    grid: type[GridShape]
    saved: type[Saved]
    forward: Callable[..., Any]
    backward: Callable[..., Any]


@cache
def _package() -> _Package:
    from . import backward, call_traits, forward, prepared_call, saved  # noqa: PLC0415

    return _Package(
        prepared_call.PreparedCall, call_traits.GridShape, saved.Saved, forward.forward,
        backward.backward,
    )  # fmt: skip


def _prepared(arguments: Arguments) -> PreparedCall:
    package, grid = _package(), None
    if arguments.key_grid:
        keys, queries = tuple(arguments.key_grid), tuple(arguments.query_grid)
        grid = package.grid(keys, queries, arguments.prefix)
    return package.call(
        dict(zip(_TENSORS, _tensors_of(arguments), strict=True)), arguments.terms.tables, grid,
        causal=arguments.causal, scale=arguments.scale, query_start=arguments.query_start,
        dropout=arguments.dropout, window=arguments.windows, softcap=arguments.softcap,
        need_axis_weights=arguments.need_axis_weights,
        dropout_origin=DropoutOrigin(*arguments.dropout_origin)
        if arguments.dropout_origin else None,
    )  # fmt: skip


def logits_of_row_max(arguments: Arguments) -> float:
    """What a row's largest score in the saved softmax is to be multiplied by, to be in logits."""
    return log(2) if _prepared(arguments).traits.scales_last else 1.0


def _forward(arguments: Arguments) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _package().forward(_prepared(arguments))


def _backward(arguments: Arguments, flow: Flow, wanted: frozenset[str]) -> dict[str, Tensor]:
    call = _prepared(arguments)
    out, softmax, axis_weights = flow.saved
    saved = _package().saved.of(
        call, out, softmax, axis_weights, flow.d_output, flow.d_lse, flow.d_axis_weights
    )
    return _package().backward(call, saved, wanted)


TRITON.define(_forward, _backward)
