"""Which backend runs: the first willing one, or the one that was named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from ..errors import BackendError
from . import reference, tiled
from .inputs import Inputs

__all__ = ["backends", "choose"]


@dataclass(frozen=True)
class Backend:
    """One way to compute the op."""

    name: str
    unavailable: Callable[[], str | None]  # why it cannot run on this machine at all
    refuse: Callable[[Inputs], str | None]  # why it cannot take these inputs
    attention: Callable[[Inputs], tuple[Tensor, Tensor]]


# In the order in which "auto" asks them.
_BACKENDS = {
    module.__name__.rsplit(".", 1)[-1]: Backend(
        module.__name__.rsplit(".", 1)[-1], module.unavailable, module.refuse, module.attention
    )
    for module in (tiled, reference)
}


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
    if name != "auto" and name not in _BACKENDS:
        raise ValueError(
            f"attention: backend must be 'auto' or one of {', '.join(map(repr, _BACKENDS))}, "
            f"got {name!r}"
        )
    asked = list(_BACKENDS.values()) if name == "auto" else [_BACKENDS[name]]
    reasons = []
    for backend in asked:
        reason = backend.unavailable() or backend.refuse(inputs)
        if reason is None:
            return backend
        reasons.append(f"{backend.name}: {reason}")
    raise BackendError(f"attention: no backend can run these inputs: {'; '.join(reasons)}")
