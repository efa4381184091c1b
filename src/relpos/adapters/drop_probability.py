"""How probable it is now that a weight is dropped, where the original has a module of dropout."""

from __future__ import annotations

from torch import nn

__all__ = ["drop_probability"]


def drop_probability(dropout: nn.Module, *, sdpa_of: nn.Module | None = None) -> float:
    """The `p` of a dropout while it is training itself, which it may be in a model that is not.

    Args:
        dropout: of weights, which alone trains in the dropout of Monte Carlo (Gal and Ghahramani
            2016); without a `p` (`nn.Identity`) it drops nothing.
        sdpa_of: the attention, if its original hands the probability to torch's SDPA, which it does
            while it is training; None: it calls the module.
    """
    training = (dropout if sdpa_of is None else sdpa_of).training
    return float(getattr(dropout, "p", 0.0)) if training else 0.0
