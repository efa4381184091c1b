"""What a backend that torch sees as one operation cannot do: it is differentiable once."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..errors import BackendError
from ..traced_sizes import is_jit_tracing
from .inputs import Inputs

try:
    from torch._C._functorch import CInterpreter, is_legacy_batchedtensor, peek_interpreter_stack
except ImportError:  # torch's own, which another version of it may move
    CInterpreter = is_legacy_batchedtensor = peek_interpreter_stack = None

__all__ = [
    "check_not_batched",
    "is_traced",
    "is_transformed",
    "may_have_tangents",
    "unsupported_transforms",
]

_UNSUPPORTED = "not supported by this backend"


def unsupported_transforms(inputs: Inputs) -> str | None:
    """Why an operation that torch cannot look into cannot take these inputs now, or None."""
    if is_traced() and torch.onnx.is_in_onnx_export():
        return f"{_UNSUPPORTED}: export to ONNX, which has no such operator"
    if is_transformed():
        return f"{_UNSUPPORTED}: torch.func transforms"
    if not may_have_tangents():
        return None
    for x in (inputs.q, inputs.k, inputs.v, inputs.mask, *inputs.terms.tensors):
        if x is not None and forward_ad.unpack_dual(x).tangent is not None:
            return f"{_UNSUPPORTED}: forward-mode derivatives"
    return None


def may_have_tangents() -> bool:
    """Whether a level of forward-mode derivatives is entered."""
    return getattr(forward_ad, "_current_level", 0) >= 0


def is_traced() -> bool:
    """Whether the call is written down now: by `torch.compile`, an export, `torch.jit.trace`."""
    return torch.compiler.is_compiling() or is_jit_tracing()


def check_not_batched(backend: str, *gradients: Tensor | None) -> None:
    """Raise if backward is called for several outputs at once.

    Raises:
        BackendError: with the way out.
    """
    if any(x is not None and _is_batched(x) for x in gradients) or is_transformed():
        raise BackendError(
            f"attention: {backend}: {_UNSUPPORTED}: gradients of several outputs at once "
            "(is_grads_batched, vectorize); name backend='reference', or use torch.func.jacrev, "
            "for which 'auto' chooses it"
        )


def is_transformed() -> bool:
    """Whether a transform of `torch.func` runs now."""
    if peek_interpreter_stack is not None and CInterpreter is not None:
        # Not `is not None`: as `torch.compile` traces it, that is True without a transform too.
        return isinstance(peek_interpreter_stack(), CInterpreter)
    if torch.compiler.is_compiling():
        return False  # there torch maps such an operation itself, or says that it cannot
    try:
        torch.empty(()).requires_grad_()
    except RuntimeError:  # within a transform no tensor may be told to
        return True
    return False


def _is_batched(gradient: Tensor) -> bool:
    """Whether it stands for several, as `torch.autograd.grad` makes it."""
    if is_legacy_batchedtensor is not None:
        return is_legacy_batchedtensor(gradient)
    try:
        gradient.untyped_storage()
    except (NotImplementedError, RuntimeError):  # several tensors have no one storage
        return True
    return False
