"""Rows of a parameter that a scheme hands to attention as they are, under FSDP."""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["copied_under_fsdp"]


def copied_under_fsdp(module: nn.Module, rows: Tensor) -> Tensor:
    """`rows`, or under FSDP a copy of them.

    FSDP frees parameters after the forward of what it wraps. If that is the scheme itself, and not
    the layer around it, attention comes later. A scheme does not know which, and copies either way.

    Args:
        module: the scheme.
        rows: a parameter of it, or a view of one.
    """
    return rows.clone() if "_is_fsdp_managed_module" in module.__dict__ else rows
