"""Which backend runs: the first that supports the inputs, or the one that was named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast, runtime_checkable

from torch import Tensor

from ..checks import one_line
from ..errors import BackendError
from . import native, reference, tiled, triton
from .inputs import Inputs
from .parts import Part, RowFlow
from .transforms import is_traced

__all__ = [
    "FEW_SCORES",
    "PartsBackend",
    "backends",
    "check_backend",
    "choose",
    "choose_for_parts",
    "has_few_scores",
]


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


@runtime_checkable
class PartsBackend(Backend, Protocol):
    """One that can compute with a part of each row's keys at a time."""

    @staticmethod
    def part(inputs: Inputs) -> Part:
        """The output and the softmax over these keys; not differentiable."""
        ...

    @staticmethod
    def part_gradients(inputs: Inputs, flow: RowFlow, wanted: frozenset[str]) -> dict[str, Tensor]:
        """The gradients by the names of `arguments.Arguments`."""
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
#   tiled      but for few scores, where reference is as fast forward and faster with backward
#   reference  whatever the others do not support
#
# Never by whether gradients are wanted: the second forward pass of checkpointing could draw another
# dropout than the first.
#
# On a GPU triton comes first where `triton.is_fast` says so. Measured beside tiled and reference,
# from 64 tokens on, it took less time in each case: in bfloat16, of which float16 has the
# instructions (benchmarks/results/cuda.json), and in float32 (cuda_more.json).
_AUTO = ("native", "tiled", "reference")
_AUTO_ON_GPU = ("triton", "tiled", "reference")
# Up to so many scores "auto" passes tiled over. Where there are twice as many it is a quarter
# faster than reference forward, and as much slower with backward.
FEW_SCORES = 4096


def backends() -> dict[str, str | None]:
    """Each backend's name, with None where it can run on this machine, else the reason.

    >>> backends()["reference"] is None
    True
    """
    return {name: backend.unavailable() for name, backend in _BACKENDS.items()}


def has_few_scores(batch: int, heads: int, queries: int, keys: int) -> bool:
    """Whether reference is worth taking before tiled; not for one query, which has no backward.

    >>> has_few_scores(1, 8, 16, 16), has_few_scores(1, 8, 64, 64)
    (True, False)
    """
    return queries > 1 and batch * heads * queries * keys <= FEW_SCORES


def _asks_tiled_last(inputs: Inputs) -> bool:
    if is_traced():  # for other lengths too
        return False
    batch, heads, queries, _ = inputs.q.shape
    return has_few_scores(batch, heads, queries, inputs.k.shape[2])


def _auto(inputs: Inputs) -> tuple[str, ...]:
    """What `"auto"` asks for these inputs, in order."""
    takes_triton = inputs.q.is_cuda and triton.unavailable() is None and triton.is_fast(inputs)
    names = _AUTO_ON_GPU if takes_triton else _AUTO
    if _asks_tiled_last(inputs):
        return (*(name for name in names if name != "tiled"), "tiled")
    return names


def check_backend(name: str) -> None:
    """Raise a ValueError unless there is a backend of that name, or it is `"auto"`."""
    if not isinstance(name, str) or (name != "auto" and name not in _BACKENDS):
        raise ValueError(
            f"attention: backend must be 'auto' or one of {', '.join(map(repr, _BACKENDS))}, "
            f"got {one_line(name)}"
        )


def choose(name: str, inputs: Inputs) -> Backend:
    """The backend called `name`, or for `"auto"` the first that supports the inputs.

    Raises:
        ValueError: if there is no backend of that name.
        BackendError: with the reason, if the named backend, or every one, does not support the
            inputs.
    """
    return _first(name, inputs, lambda backend: backend.unsupported(inputs))


def choose_for_parts(name: str, inputs: Inputs) -> PartsBackend:
    """As `choose`, of those backends that compute with a part of each row's keys at a time.

    Raises:
        ValueError: if there is no backend of that name.
        BackendError: with the reason, if the named backend, or every one, does not support the
            inputs.
    """

    def refused(backend: Backend) -> str | None:
        reason = backend.unsupported(inputs)
        if reason is None and not isinstance(backend, PartsBackend):
            reason = "not supported by this backend: a part of each row's keys at a time"
        return reason

    return cast(PartsBackend, _first(name, inputs, refused))


def _first(name: str, inputs: Inputs, refused: Callable[[Backend], str | None]) -> Backend:
    """The first of those that a name stands for which is available and not refused."""
    check_backend(name)
    reasons = []
    for label in _auto(inputs) if name == "auto" else (name,):
        backend = _BACKENDS[label]
        reason = backend.unavailable() or refused(backend)
        if reason is None:
            return backend
        reasons.append(f"{label}: {reason}")
    reason = "; ".join(reasons)
    raise BackendError(f"attention: backend={name!r} cannot run these inputs: {reason}")
