"""Performances as token sequences to measure on, cut where all of them would take too long."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from .performance import Performance
from .tokens import encode

__all__ = ["excerpts"]


def excerpts(
    performances: Sequence[Performance], *, most: int | None = None
) -> list[Int64[ndarray, "_"]]:
    """The tokens of each performance, or as many from its beginning that all fit a budget.

    Args:
        performances: any.
        most: tokens over all performances, begin tokens not counted; None: all there are. Short
            performances are taken whole, and all others to the same length.

    Returns:
        A sequence for each performance, with the begin token in front; none without another token.

    >>> from .performance import performance_of
    >>> long, short = (performance_of("", [0], [100 * n], [60], [64]) for n in (9, 1))
    >>> [len(tokens) for tokens in excerpts([long, short], most=10)]
    [7, 5]
    """
    whole = [encode(performance) for performance in performances]
    if most is None:
        return whole
    sizes = np.sort([len(tokens) - 1 for tokens in whole])
    # By how much the shortest are below an equal share, the others may be above it.
    left, length = most, 0
    for index, size in enumerate(sizes.tolist()):
        length = max(1, left // (len(sizes) - index))
        if size > length:
            break
        left, length = left - size, size
    return [tokens[: length + 1] for tokens in whole]
