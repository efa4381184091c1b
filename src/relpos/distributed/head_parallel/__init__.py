"""`HeadParallel`: layers of which each rank has some heads."""

from .style import HeadParallel

__all__ = ["HeadParallel"]
