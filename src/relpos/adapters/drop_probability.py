"""How probable it is now that a weight is dropped, where the original asks a module of dropout."""

from __future__ import annotations

from torch import nn

__all__ = ["drop_probability"]


def drop_probability(dropout: nn.Dropout) -> float:
    """Its probability while it is training itself, which it may be in a model that is not.

    Args:
        dropout: of weights; in the dropout of Monte Carlo (Gal and Ghahramani 2016) it alone is.
    """
    return dropout.p if dropout.training else 0.0
