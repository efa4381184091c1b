"""What exchanges between ranks is in no graph of `torch.compile`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import torch

__all__ = ["not_compiled"]

F = TypeVar("F", bound=Callable[..., object])


def not_compiled(function: F) -> F:
    """The function, which `torch.compile` calls as it is, between one graph and the next."""
    return cast("F", torch.compiler.disable(function))
