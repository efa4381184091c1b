"""Whether `torch.autocast` is on, and a context in which it is off."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

__all__ = ["autocasts", "without_autocast"]


def autocasts(x: Tensor) -> bool:
    """Whether autocast is on for the device of `x`."""
    # Asked about device `meta`, torch raises.
    return not x.is_meta and torch.is_autocast_enabled(x.device.type)


def without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """A context in which autocast is off for the device of `x`."""
    return torch.autocast(x.device.type, enabled=False) if autocasts(x) else nullcontext()
