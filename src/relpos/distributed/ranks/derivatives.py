"""Functions of autograd that exchange between ranks: differentiable once, and in words."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from ...errors import BackendError

__all__ = ["refuse_second_derivatives"]


def refuse_second_derivatives(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A `backward` that refuses to be differentiated: exchanges are in no graph.

    Raises:
        BackendError: under `create_graph=True`, on every rank.
    """

    @wraps(backward)
    def run(ctx: Any, *gradients: Any) -> Any:
        if torch.is_grad_enabled():
            raise BackendError(
                "relpos.distributed: second derivatives are not supported over several devices "
                "(create_graph must be False)"
            )
        return backward(ctx, *gradients)

    return run
