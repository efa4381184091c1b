"""Which backend runs: the first willing one, or the one that was named."""

from __future__ import annotations

from math import prod
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from ..errors import BackendError
from . import native, reference, tiled
from .inputs import Inputs

__all__ = ["backends", "choose"]


@runtime_checkable
class Backend(Protocol):
    """One way to compute the op: a module with these functions."""

    @staticmethod
    def unavailable() -> str | None:
        """Why it cannot run on this machine at all, or None."""
        ...

    @staticmethod
    def refuse(inputs: Inputs) -> str | None:
        """Why it cannot take these inputs, or None."""
        ...

    @staticmethod
    def attention(inputs: Inputs) -> tuple[Tensor, Tensor]:
        """The output, and the log-sum-exp if it is asked for."""
        ...


_BACKENDS: dict[str, Backend] = {
    "native": native,
    "tiled": tiled,
    "reference": reference,
}

# "auto" asks the fastest first, as benchmarks/choice.py found it (results/choice.json): on two
# cores, in float32 and bfloat16, for all kinds of terms and masks, 1 to 2048 queries and 16 to 8192
# keys.
#
#   native     the fastest in all 496 cases
#   tiled      without native, faster than reference in 382 of 464 cases, 800 times at best
#   reference  without native, faster than tiled in the 32 others: gradients are wanted, and all
#              heads together have up to 32768 pairs
_ORDER = ("native", "tiled", "reference")
_ORDER_IF_SMALL = ("native", "reference", "tiled")
_SMALL = 1 << 15  # pairs


def backends() -> dict[str, str | None]:
    """Each backend's name, with None where it can run on this machine, else the reason.

    >>> backends()["reference"] is None
    True
    """
    return {name: backend.unavailable() for name, backend in _BACKENDS.items()}


def choose(name: str, inputs: Inputs) -> Backend:
    """The backend called `name`, or for `"auto"` the first that is willing.

    Raises:
        ValueError: if there is no backend of that name.
        BackendError: with the reason, if the named backend (or every one) refuses.
    """
    if not isinstance(name, str) or (name != "auto" and name not in _BACKENDS):
        raise ValueError(
            f"attention: backend must be 'auto' or one of {', '.join(map(repr, _BACKENDS))}, "
            f"got {name!r}"
        )
    reasons = []
    for label in _order(inputs) if name == "auto" else (name,):
        backend = _BACKENDS[label]
        reason = backend.unavailable() or backend.refuse(inputs)
        if reason is None:
            return backend
        reasons.append(f"{label}: {reason}")
    raise BackendError(f"attention: no backend can run these inputs: {'; '.join(reasons)}")


def _order(inputs: Inputs) -> tuple[str, ...]:
    """The backends, the fastest first."""
    sizes = (*inputs.q.shape[:3], inputs.k.shape[2])
    # A length that is a symbol stays one: what is compiled or exported is for all lengths.
    known = not any(isinstance(size, torch.SymInt) for size in sizes)
    small = known and inputs.q.device.type == "cpu" and prod(sizes) <= _SMALL
    return _ORDER_IF_SMALL if small and _trains(inputs) else _ORDER


def _trains(inputs: Inputs) -> bool:
    tensors = [inputs.q, inputs.k, inputs.v, inputs.mask, *inputs.terms.tensors]
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
