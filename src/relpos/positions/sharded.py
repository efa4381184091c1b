"""Rows of a parameter that a scheme hands to attention as they are, under FSDP."""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["outliving"]


def outliving(module: nn.Module, rows: Tensor) -> Tensor:
    """`rows` that are still there when the scheme's own call is over.

    FSDP frees a module's parameters after its forward. Where it wraps a scheme by itself, and not
    the layer around it, attention comes later: it is given a copy.

    Args:
        module: the scheme.
        rows: a parameter of it, or a view of one.
    """
    return rows.clone() if "_is_fsdp_managed_module" in module.__dict__ else rows
