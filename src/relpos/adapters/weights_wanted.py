"""Whether a model of transformers was asked for its attention weights."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from transformers.utils import output_capturing

__all__ = ["weights_wanted"]


def weights_wanted(arguments: Mapping[str, object]) -> bool:
    """Whether the model that is being called was asked for attention weights.

    Args:
        arguments: what an attention module of it was called with beside its own parameters.
    """
    return bool(arguments.get("output_attentions")) or _recorded()


def _recorded() -> bool:
    """Whether transformers' hooks are collecting attention weights."""
    collector = getattr(output_capturing, "_active_collector", None)
    if collector is None:
        return False
    if torch.compiler.is_compiling() and not collector.compiling:
        # No compiled model is collecting, and the context variable would break the graph.
        return False
    collected = collector.get()
    return collected is not None and any("attentions" in key for key in collected)
