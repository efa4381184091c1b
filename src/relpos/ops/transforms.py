"""What opaque backends cannot do: they are one operation to torch, differentiable once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._C._functorch import CInterpreter, is_legacy_batchedtensor, peek_interpreter_stack
from torch.autograd.forward_ad import unpack_dual

from ..errors import BackendError
from .inputs import Inputs

__all__ = ["check_not_batched", "refuse_second_derivatives", "refuse_transforms"]


def refuse_transforms(inputs: Inputs) -> str | None:
    """Why an operation that torch cannot look into cannot take these inputs now, or None."""
    if torch.onnx.is_in_onnx_export():
        return "ONNX has no such operator"
    # Not `is not None`: as `torch.compile` traces it, that is True without a transform too.
    if isinstance(peek_interpreter_stack(), CInterpreter):
        return "torch.func transforms want plain operations"
    tensors = [inputs.q, inputs.k, inputs.v, inputs.mask, *inputs.terms.tensors]
    if any(x is not None and unpack_dual(x).tangent is not None for x in tensors):
        return "forward-mode derivatives are not computed blockwise"
    return None


def refuse_second_derivatives(backend: str) -> Callable[..., NoReturn]:
    """The derivative of a backend's backward: an error in words."""

    def refuse(ctx: Any, *gradients: Any) -> NoReturn:
        raise BackendError(
            f"attention: {backend}: second derivatives are not computed blockwise; name "
            "backend='reference', or take derivatives by torch.func, for which 'auto' chooses it"
        )

    return refuse


def check_not_batched(backend: str, gradient: Tensor | None) -> None:
    """Raise if backward is called for several outputs at once.

    Raises:
        BackendError: with the way out.
    """
    batched = gradient is not None and is_legacy_batchedtensor(gradient)
    if batched or isinstance(peek_interpreter_stack(), CInterpreter):
        raise BackendError(
            f"attention: {backend}: gradients of several outputs at once (is_grads_batched, "
            "vectorize) are not computed blockwise; name backend='reference', or use "
            "torch.func.jacrev, for which 'auto' chooses it"
        )
