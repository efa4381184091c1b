"""A forward that was set on an instance, as accelerate's hooks do: it hides that of the class."""

from __future__ import annotations

from torch import nn

__all__ = ["forget_own_forward", "has_other_forward"]


def has_other_forward(module: nn.Module) -> bool:
    """Whether a forward that is not its class's was set on the instance.

    Args:
        module: of any class.
    """
    forward = vars(module).get("forward")
    return forward is not None and getattr(forward, "__func__", None) is not type(module).forward


def forget_own_forward(module: nn.Module) -> None:
    """Take away the forward of its class that removed hooks leave on the instance.

    It would stay in force when the class is another.

    Args:
        module: of any class, without another forward.
    """
    vars(module).pop("forward", None)
