"""A cache as the argument that a model takes it by."""

from __future__ import annotations

from typing import Any

from torch import nn

from relpos.adapters.cache_argument import cache_name

__all__ = ["cache_keyword"]


def cache_keyword(model: nn.Module, cache: Any) -> dict[str, Any]:
    """The keyword argument: its name is another before transformers 5.24."""
    return {cache_name(type(model).forward): cache}
