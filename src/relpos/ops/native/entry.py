"""The compiled kernel for the CPU: `O(L)` memory, all terms in the tiles that lie in cache."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...terms import GridTerms
from ...traced_sizes import plain_size
from ..arguments import arguments_of
from ..axis_terms import axis_tables
from ..inputs import Inputs
from ..operator_call import OperatorCall
from ..parts import Part, RowFlow
from ..rounded_off import rounded_apart, with_rounded_off
from ..transforms import unsupported_transforms
from .library import MISSING
from .ops import NATIVE

__all__ = ["attention", "operator_call", "part", "part_gradients", "unavailable", "unsupported"]

# Of a grid: `kMaxAxes` in csrc/params.h.
_MAX_AXES = 8


def unavailable() -> str | None:
    """Why the kernel is not there, or None."""
    return MISSING


def unsupported(inputs: Inputs) -> str | None:
    """Why `attention` cannot take these inputs, or None."""
    if inputs.q.device.type != "cpu":
        return f"it runs on the CPU, not on {inputs.q.device.type}"
    if inputs.q.dtype == torch.float64:
        return "it computes in float32, which is not enough for float64"
    if isinstance(inputs.terms, GridTerms) and len(inputs.terms.shape) > _MAX_AXES:
        return f"its grids have at most {_MAX_AXES} axes"
    return unsupported_transforms(inputs)


def attention(inputs: Inputs) -> tuple[Float[Tensor, "b h i dv"], Float[Tensor, "b h i"]]:
    """Output and log-sum-exp; values larger than 5e33 may overflow.

    Half precision computes in float32, but on AMX, whose products have factors in bfloat16 and sums
    in float32. There the weights of a call in bfloat16 are rounded, as in FlashAttention on GPUs;
    and numbers in float16 are split into two bfloat16 numbers, which is exact, with weights and
    their gradients to 2^-16. So are those in float32 where torch's own products may be less than
    float32's (`torch.set_float32_matmul_precision("high")` or `"medium"`), with errors of about
    1e-5 of the largest factors; what is smaller than 1e-33 loses its digits there. Of split numbers
    an infinite one makes NaN.
    """
    terms = inputs.terms
    of_grid = _of_grid(terms) if isinstance(terms, GridTerms) else {}
    found = NATIVE(inputs, split_float32=_splits_float32(inputs), **of_grid)
    return found["output"], found["lse"]


def operator_call(inputs: Inputs) -> OperatorCall | None:
    """What calls of `attention` that are alike have in common."""
    if isinstance(inputs.terms, GridTerms):
        return None
    return OperatorCall(NATIVE, inputs, split_float32=_splits_float32(inputs))


def part(inputs: Inputs) -> Part:
    """The output and the softmax over these keys, in float32."""
    arguments = arguments_of(inputs, split_float32=_splits_float32(inputs))
    found = NATIVE.compute_forward(arguments)
    return Part(with_rounded_off(found["output"], found["rounded_off"]), found["softmax"])


def part_gradients(inputs: Inputs, flow: RowFlow, wanted: frozenset[str]) -> dict[str, Tensor]:
    """The gradients by name, each in the dtype of what it is for."""
    split = _splits_float32(inputs)
    arguments = arguments_of(inputs, has_other_keys=True, split_float32=split)
    output, rounded_off = rounded_apart(flow.output, inputs.q.dtype)
    saved = {"output": output, "softmax": flow.softmax, "rounded_off": rounded_off}
    return NATIVE.compute_backward(arguments, flow.d_output, flow.d_lse, saved, wanted)


def _splits_float32(inputs: Inputs) -> bool:
    return inputs.q.dtype == torch.float32 and _may_split_float32()


def _may_split_float32() -> bool:
    """Whether float32 products on the CPU may be less than that, as torch's own setting says.

    `torch.compile` cannot trace the setting: it compiles with the value of that moment.
    """
    return torch.backends.mkldnn.matmul.fp32_precision in {"tf32", "bf16"}  # type: ignore[attr-defined]


# What `torch.compiler.assume_constant_result` does, which would import all of torch's compiler.
_may_split_float32._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _of_grid(terms: GridTerms) -> dict[str, Any]:
    """The tables, from which the kernel computes relative logits itself."""
    q_rel = [axis.q_rel for axis in terms.axes if axis.q_rel is not None]
    return {
        "q_rel": torch.cat(q_rel, -1) if q_rel else None,
        "axis_tables": axis_tables(terms),
        "joint_bias": None if terms.joint_bias is None else terms.joint_bias.float().flatten(1),
        "axis_key_widths": [
            0 if axis.keys is None else plain_size(axis.keys.rows, 2) for axis in terms.axes
        ],
        "axis_has_q_rel": [int(axis.q_rel is not None) for axis in terms.axes],
        "axis_has_queries": [int(axis.queries is not None) for axis in terms.axes],
        "axis_has_bias": [int(axis.bias is not None) for axis in terms.axes],
        "axis_has_values": [int(axis.values is not None) for axis in terms.axes],
    }
