"""Which backend runs: the first that supports the inputs, or the one that was named."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from ..checks import one_line
from ..errors import BackendError
from . import native, reference, tiled, triton
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
    def unsupported(inputs: Inputs) -> str | None:
        """Why it cannot take these inputs, or None."""
        ...

    @staticmethod
    def attention(inputs: Inputs) -> tuple[Tensor, Tensor]:
        """The output, and the log-sum-exp if it is asked for."""
        ...


_BACKENDS: dict[str, Backend] = {
    "native": native,
    "triton": triton,
    "tiled": tiled,
    "reference": reference,
}

# What "auto" asks, the fastest first, as benchmarks/choice.py measured them on the CPU (the counts
# are in docs/benchmark.md).
#
#   native     the fastest wherever it supports the inputs
#   tiled      mostly faster than reference; short calls in training are not
#   reference  last all the same: if "auto" went by whether gradients are wanted, the second forward
#              pass of checkpointing could draw another dropout than the first
#
# Not triton: no GPU has run it yet, and "auto" goes by what was measured.
_AUTO = ("native", "tiled", "reference")


def backends() -> dict[str, str | None]:
    """Each backend's name, with None where it can run on this machine, else the reason.

    >>> backends()["reference"] is None
    True
    """
    return {name: backend.unavailable() for name, backend in _BACKENDS.items()}


def choose(name: str, inputs: Inputs) -> Backend:
    """The backend called `name`, or for `"auto"` the first that supports the inputs.

    Raises:
        ValueError: if there is no backend of that name.
        BackendError: with the reason, if the named backend, or every one, does not support the
            inputs.
    """
    if not isinstance(name, str) or (name != "auto" and name not in _BACKENDS):
        raise ValueError(
            f"attention: backend must be 'auto' or one of {', '.join(map(repr, _BACKENDS))}, "
            f"got {one_line(name)}"
        )
    reasons = []
    for label in _AUTO if name == "auto" else (name,):
        backend = _BACKENDS[label]
        reason = backend.unavailable() or backend.unsupported(inputs)
        if reason is None:
            return backend
        reasons.append(f"{label}: {reason}")
    reason = "; ".join(reasons)
    raise BackendError(f"attention: backend={name!r} cannot run these inputs: {reason}")
