"""What an `Attend` gives beside its output, with scores and weights computed when they are read."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from functools import partial
from typing import Any

import torch

__all__ = ["LazyIntermediates", "as_now"]

_OF_PAIRS = ("qk_similarities", "pre_softmax_attn", "post_softmax_attn")


def _computed(name: str) -> property:
    """A field of `LazyIntermediates` of this name."""
    return property(
        lambda lazy: lazy.read(name), lambda lazy, value: lazy.known.__setitem__(name, value)
    )


class LazyIntermediates:
    """What stands before `Intermediates`: its fields of pairs, computed when they are read."""

    def __init__(self, compute: Callable[[], Any] | None = None, **fields: Any) -> None:
        self.compute = compute
        self.known: dict[str, Any] = {}
        super().__init__(**fields)
        if compute is not None:
            self.known.clear()

    def __copy__(self) -> Any:
        found = object.__new__(type(self))
        vars(found).update(vars(self) | {"known": dict(self.known)})
        return found

    def __reduce__(self) -> Any:
        original = next(base for base in type(self).__mro__[1:] if base is not LazyIntermediates)
        return original, tuple(getattr(self, field.name) for field in fields(original))

    def read(self, name: str) -> Any:
        """The field of this name.

        Args:
            name: of `_OF_PAIRS`.
        """
        if name not in self.known:
            assert self.compute is not None
            found, self.compute = self.compute(), None
            self.known = {field: getattr(found, field) for field in _OF_PAIRS} | self.known
        return self.known[name]

    qk_similarities = _computed("qk_similarities")
    pre_softmax_attn = _computed("pre_softmax_attn")
    post_softmax_attn = _computed("post_softmax_attn")


def as_now(function: Callable[[], Any], device: torch.device) -> Callable[[], Any]:
    """A function that is called later, with gradients and autocast as they are now.

    What it draws changes nothing that is drawn afterwards.

    Args:
        function: without arguments.
        device: on which it computes.
    """
    kind, gradients = device.type, torch.is_grad_enabled()
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
    if torch.amp.is_autocast_available(kind):
        enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
        autocast = partial(torch.autocast, kind, dtype, enabled=enabled)
    devices = [device] if kind == "cuda" else []

    def call() -> Any:
        with torch.set_grad_enabled(gradients), autocast(), torch.random.fork_rng(devices):
            return function()

    return call
