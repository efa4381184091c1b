"""`ContextParallel`: models of which each rank has some tokens of every sequence."""

from .style import ContextParallel

__all__ = ["ContextParallel"]
