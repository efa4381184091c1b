"""From an operator's arguments to a call's kernels."""

from __future__ import annotations

from collections.abc import Hashable
from math import log
from operator import attrgetter

import torch
from torch import Tensor

from ..arguments import DECLARED, Arguments, Flow, schema_type
from ..inputs import DropoutOrigin
from .backward import backward
from .call_plan import CallSettings, matmul_precision, scales_last
from .call_traits import GridShape, MaskTraits
from .forward import ForwardResult, forward
from .prepared_call import PreparedCall
from .recorded import run_pass
from .saved import Saved

__all__ = ["logits_of_row_max", "run_backward", "run_forward"]

_TENSORS = (
    "q", "k", "v", "q_rel", "mask", "key_axis_logits", "query_axis_logits", "joint_bias",
    "documents", "query_documents", "key_ranges", "axis_ranges", "seed",
)  # fmt: skip
_tensors_of = attrgetter(*_TENSORS)
_all_tensors_of = attrgetter(*(x for x in DECLARED if schema_type(x).startswith("Tensor")))
_numbers_of = attrgetter(*(x for x in DECLARED if not schema_type(x).startswith("Tensor")))


def run_forward(arguments: Arguments, *, before_backward: bool = True) -> ForwardResult:
    """The results of the operator; without what only a backward pass reads, where none follows."""

    def make() -> ForwardResult:
        return forward(_prepared(arguments), keep_rounded_off=before_backward)

    if arguments.alike is not None:
        key, tensors = ("forward", before_backward, arguments.alike), _all_tensors_of(arguments)
        return run_pass(key, tensors, make, lie_alike=True)
    tensors, settings = _taken_apart(arguments)
    return run_pass(("forward", before_backward, settings), tensors, make)


def run_backward(arguments: Arguments, flow: Flow, wanted: frozenset[str]) -> dict[str, Tensor]:
    """The gradients that are wanted, by name."""

    def make() -> dict[str, Tensor]:
        call = _prepared(arguments)
        out, softmax, axis_weights, rounded_off = flow.saved
        saved = Saved.of(
            call, out, softmax, axis_weights, rounded_off, flow.d_output, flow.d_lse,
            flow.d_axis_weights,
        )  # fmt: skip
        return backward(call, saved, wanted)

    tensors, settings = _taken_apart(arguments)
    flows = *flow.saved, flow.d_output, flow.d_lse, flow.d_axis_weights
    return run_pass(("backward", settings, wanted), (*tensors, *flows), make)


def logits_of_row_max(arguments: Arguments) -> float:
    """What a row's largest score in the saved softmax is to be multiplied by, to be in logits."""
    settings, _ = _settings(arguments)
    return log(2) if scales_last(settings, MaskTraits.of(arguments.mask)) else 1.0


def _taken_apart(arguments: Arguments) -> tuple[tuple[Tensor | None, ...], Hashable]:
    """The tensors of a call, and all else that decides how it is computed."""
    numbers = tuple([tuple(x) if type(x) is list else x for x in _numbers_of(arguments)])
    autocast = torch.is_autocast_enabled(arguments.q.device.type)
    return _all_tensors_of(arguments), (numbers, matmul_precision(), autocast)


def _settings(arguments: Arguments) -> tuple[CallSettings, DropoutOrigin | None]:
    grid, origin = None, None
    if arguments.key_grid:
        keys, queries = tuple(arguments.key_grid), tuple(arguments.query_grid)
        grid = GridShape(keys, queries, arguments.prefix)
    if arguments.dropout and arguments.dropout_origin:
        origin = DropoutOrigin(*arguments.dropout_origin)
    settings = CallSettings(
        grid, arguments.causal, float(arguments.scale), arguments.query_start, arguments.dropout,
        matmul_precision(), arguments.windows, arguments.softcap, arguments.need_axis_weights,
        is_part=origin is not None,
    )  # fmt: skip
    return settings, origin


def _prepared(arguments: Arguments) -> PreparedCall:
    settings, origin = _settings(arguments)
    tensors: dict[str, Tensor | None] = dict(zip(_TENSORS, _tensors_of(arguments), strict=True))
    return PreparedCall(tensors, arguments.terms.tables, settings, origin)
