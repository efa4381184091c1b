"""The operators that torch sees of this backend. Triton is imported when one first runs."""

from __future__ import annotations

from functools import cache
from types import ModuleType

from torch import Tensor

from ..arguments import AXIS_TABLES, Arguments, Flow
from ..custom_op import CustomOp

__all__ = ["TRITON", "logits_of_row_max"]

TRITON = CustomOp(
    "triton",
    results=("output", "lse", "softmax", "axis_weights", "rounded_off"),
    saved=("output", "softmax", "axis_weights", "rounded_off"),
    without=(*AXIS_TABLES, "split_float32", "return_lse", "has_other_keys"),
    seed_on=None,  # nothing waits, and a captured graph draws anew each time
)


@cache
def _calls() -> ModuleType:
    from . import calls  # noqa: PLC0415

    return calls


def logits_of_row_max(arguments: Arguments) -> float:
    """What a row's largest score in the saved softmax is to be multiplied by, to be in logits."""
    return _calls().logits_of_row_max(arguments)


def _forward(arguments: Arguments) -> tuple[Tensor, ...]:
    return _calls().run_forward(arguments)


def _forward_alone(arguments: Arguments) -> tuple[Tensor, ...]:
    return _calls().run_forward(arguments, before_backward=False)


def _backward(arguments: Arguments, flow: Flow, wanted: frozenset[str]) -> dict[str, Tensor]:
    return _calls().run_backward(arguments, flow, wanted)


TRITON.define(_forward, _backward, forward_alone=_forward_alone)
