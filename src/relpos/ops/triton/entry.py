"""Fused Triton kernels for CUDA: `O(L)` memory, all terms in the tiles, gradients without atomics.

Triton itself is imported when the op first runs.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor

from ...terms import GridTerms, Terms
from ..arguments import DECLARED, Arguments, arguments_of
from ..by_axis_logits import attention_by_axis_logits
from ..inputs import Inputs
from ..operator_call import OperatorCall
from ..parts import Part, RowFlow
from ..rounded_off import rounded_apart, with_rounded_off
from ..transforms import unsupported_transforms
from .axis_op import axis_logits_of
from .dense_bias import with_dense_bias
from .ops import TRITON, logits_of_row_max
from .tuning import multiplies_by_warp_group, program_memory, widest_of_three_products

__all__ = [
    "attention",
    "is_fast",
    "operator_call",
    "part",
    "part_gradients",
    "unavailable",
    "unsupported",
]

_INSTALLED = find_spec("triton") is not None
# As Triton itself does, which reads it when its functions are made.
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_MAX_WIDTH = 256
_MAX_COORDINATES = 512
_ROOM_OF_WIDE_FLOAT32 = 160 << 10  # bytes; cards for games have 99 KiB


def unavailable() -> str | None:
    """Why the kernels cannot run on this machine, or None."""
    if not _INSTALLED:
        return "triton is not installed"
    if not _INTERPRETED and not torch.cuda.is_available():
        return "there is no CUDA device (for tests, TRITON_INTERPRET=1 runs it on the CPU)"
    if torch.version.hip is not None:
        return "its kernels are for NVIDIA's GPUs"
    return None if _INTERPRETED else _without_a_compiler()


def _without_a_compiler() -> str | None:
    """Why Triton cannot build what it launches kernels with, or None."""
    return _try_its_launcher()


# As `torch.compiler.assume_constant_result` does, which would import all of torch's compiler. The
# cache is behind it: the compiler would look through one, and warn.
_without_a_compiler._dynamo_marked_constant = True  # type: ignore[attr-defined]


@cache
def _try_its_launcher() -> str | None:
    """The same, found out once.

    Triton compiles its launcher once for a machine, in C. Where there is nothing to compile with,
    as in images that are made small, only its cache may have it.
    """
    has_compiler = "CC" in os.environ or any(map(shutil.which, ("gcc", "clang")))
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")  # as Triton
    headers = sysconfig.get_paths(scheme)["include"]
    if has_compiler and Path(headers, "Python.h").exists():
        return None
    try:
        from triton.runtime import driver  # noqa: PLC0415

        cast(Any, driver.active).utils  # noqa: B018
    except Exception as error:
        return (
            "Triton has nothing to compile its launcher with, a C compiler and Python's headers: "
            f"{next(iter(str(error).splitlines()), type(error).__name__)}"
        )
    return None


def unsupported(inputs: Inputs) -> str | None:
    """Why `attention` cannot take these inputs, or None."""
    q = inputs.q
    wanted = "cpu" if _INTERPRETED else "cuda"
    if q.device.type != wanted:
        return f"it runs on {wanted}, not on {q.device.type}"
    if q.dtype == torch.float64:
        return "it computes in float32, which is not enough for float64"
    if _INTERPRETED and q.dtype == torch.bfloat16:
        return "Triton's interpreter multiplies bfloat16 wrongly"
    if not _INTERPRETED and torch.cuda.get_device_capability(q.device) < (8, 0):
        return "it needs a GPU of compute capability 8.0 or higher"
    return _too_wide(inputs) or unsupported_transforms(inputs)


def _too_wide(inputs: Inputs) -> str | None:
    """Why a tile would not fit into registers, or None."""
    terms, tables = inputs.terms, []
    if isinstance(terms, Terms):
        tables = terms.tensors
    elif max(sum(terms.shape), sum(terms.query_grid)) > _MAX_COORDINATES:
        return f"its grids have at most {_MAX_COORDINATES} coordinates on all axes together"
    of_vectors = [x for x in tables if x.ndim > 2]
    width = max(x.shape[-1] for x in (inputs.q, inputs.v, *of_vectors))
    if width > _MAX_WIDTH:
        return f"its heads are at most {_MAX_WIDTH} wide"
    if _INTERPRETED or inputs.q.dtype != torch.float32 or width <= _MAX_WIDTH // 2:
        return None
    needs_room = isinstance(terms, GridTerms) or sum(x.ndim == 3 for x in of_vectors) > 1
    if needs_room and program_memory(inputs.q.device) < _ROOM_OF_WIDE_FLOAT32:
        return (
            f"in float32 its heads are at most {_MAX_WIDTH // 2} wide with a grid or two tables of "
            "vectors, on a GPU whose programs have so little memory"
        )
    return None


def is_fast(inputs: Inputs) -> bool:
    """Whether it is expected to be faster than the backends of torch's functions, where it runs.

    In float32 that is so where products are made by four warps together, as on the GPUs that have
    timed it, for heads up to 128 wide, whose products are not split beyond.
    """
    q, terms = inputs.q, inputs.terms
    if q.dtype != torch.float32:
        return q.dtype in (torch.float16, torch.bfloat16)
    widths = [q.shape[3], inputs.v.shape[3]]
    if isinstance(terms, Terms) and terms.q_rel is not None:
        widths.append(terms.q_rel.shape[3])
    capability = torch.cuda.get_device_capability(q.device)
    most = widest_of_three_products(capability)
    return multiplies_by_warp_group(capability) and max(widths) <= most


def attention(inputs: Inputs) -> tuple[Float[Tensor, "b h i dv"], Float[Tensor, "b h i"]]:
    """Output and log-sum-exp; products in the inputs' dtype, sums in float32."""
    return attention_by_axis_logits(TRITON, with_dense_bias(inputs), axis_logits_of)


def operator_call(inputs: Inputs) -> OperatorCall | None:
    """What calls of `attention` that are alike have in common."""
    return None if isinstance(inputs.terms, GridTerms) else OperatorCall(TRITON, inputs)


def part(inputs: Inputs) -> Part:
    """The output and the softmax over these keys, in float32."""
    arguments = _in_memory(arguments_of(inputs))
    found = TRITON.compute_forward(arguments)
    row_max, inverse_sum = found["softmax"]
    empty = inverse_sum == 0
    row_max = (row_max * logits_of_row_max(arguments)).masked_fill(empty, -torch.inf)
    row_sum = (1 / inverse_sum).masked_fill(empty, 0)
    output = with_rounded_off(found["output"], found["rounded_off"])
    return Part(output, torch.stack((row_max, row_sum)))


def part_gradients(inputs: Inputs, flow: RowFlow, wanted: frozenset[str]) -> dict[str, Tensor]:
    """The gradients by name, each in the dtype of what it is for."""
    arguments = _in_memory(arguments_of(inputs))
    row_max, row_sum = flow.softmax
    empty = row_max == -torch.inf
    row_max = (row_max / logits_of_row_max(arguments)).masked_fill(empty, torch.inf)
    softmax = torch.stack((row_max, (1 / row_sum).masked_fill(empty, 0)))
    output, rounded_off = rounded_apart(flow.output, inputs.q.dtype)
    saved = {
        "output": output, "softmax": softmax, "axis_weights": softmax.new_empty(0),
        "rounded_off": rounded_off,
    }  # fmt: skip
    d_output = flow.d_output.resolve_neg()
    return TRITON.compute_backward(arguments, d_output, flow.d_lse, saved, wanted)


def _in_memory(arguments: Arguments) -> Arguments:
    """The same, without tensors that torch negates when they are read: kernels would not."""
    for name in DECLARED:
        x = getattr(arguments, name)
        if isinstance(x, Tensor) and x.is_neg():
            setattr(arguments, name, x.resolve_neg())
    return arguments
