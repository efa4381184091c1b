"""Which backend runs: the first willing one, or the one that was named."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from ..errors import BackendError
from . import native, reference, tiled
from .inputs import Inputs

__all__ = ["SMALL", "backends", "choose"]


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

# Up to so many pairs of all heads together, `reference` is faster than `tiled` where gradients are
# wanted, whatever the terms. From twice as many on it depends on them.
SMALL = 1 << 15


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
    for label in _order(inputs) if name == "auto" else iter((name,)):
        backend = _BACKENDS[label]
        reason = backend.unavailable() or backend.refuse(inputs)
        if reason is None:
            return backend
        reasons.append(f"{label}: {reason}")
    raise BackendError(f"attention: no backend can run these inputs: {'; '.join(reasons)}")


def _order(inputs: Inputs) -> Iterator[str]:
    """The backends, the fastest first, as benchmarks/choice.py measured them.

    The counts are in docs/benchmark.md: `native` is the fastest wherever it is willing; without it
    `tiled` mostly is, but for small calls in training.
    """
    yield "native"
    yield from ("reference", "tiled") if _is_small_training(inputs) else ("tiled", "reference")


def _is_small_training(inputs: Inputs) -> bool:
    # What is compiled or exported is for all lengths.
    if torch.compiler.is_compiling() or inputs.q.device.type != "cpu":
        return False
    tensors = [inputs.q, inputs.k, inputs.v, inputs.mask, *inputs.terms.tensors]
    trains = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
    return trains and prod(inputs.q.shape[:3]) * inputs.k.shape[2] <= SMALL
