"""Performances as token sequences to measure on, cut where all of them would take too long."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from .performance import Performance
from .split import digest_of
from .tokens import encode

__all__ = ["excerpts"]


def excerpts(
    performances: Sequence[Performance], *, most: int | None = None, least: int = 1
) -> list[Int64[ndarray, "_"]]:
    """The tokens of each performance, or as many from its beginning that all fit a budget.

    Where so little would be left of each that no long context could be tried, only as many are
    taken as fit: which ones depends on what they hold, and neither on names nor on order.

    Args:
        performances: any.
        most: tokens over all performances, begin tokens not counted; None: all there are. Short
            performances are taken whole, and all others to the same length.
        least: tokens that a longer performance is cut to at least, unless `most` is less.

    Returns:
        A sequence for each performance that is taken, in their order, with the begin token in
        front; none without another token.

    >>> from .performance import performance_of
    >>> long, short = (performance_of("", [0], [100 * n], [60], [64]) for n in (9, 1))
    >>> [len(tokens) for tokens in excerpts([long, short], most=10)]
    [7, 5]
    >>> len(excerpts([long, short], most=10, least=8))
    1
    """
    if most is None:
        return [encode(performance) for performance in performances]
    whole = [encode(one) for one in _fitting(performances, most=most, least=least)]
    sizes = np.sort([len(tokens) - 1 for tokens in whole])
    # By how much the shortest are below an equal share, the others may be above it.
    left, length = most, 0
    for index, size in enumerate(sizes.tolist()):
        length = max(1, left // (len(sizes) - index))
        if size > length:
            break
        left, length = left - size, size
    return [tokens[: length + 1] for tokens in whole]


def _fitting(performances: Sequence[Performance], *, most: int, least: int) -> list[Performance]:
    """As many performances as have room with `least` tokens each, or all that they are."""
    order = sorted(range(len(performances)), key=lambda index: digest_of(performances[index]))
    needed = [min(least, len(encode(performances[index])) - 1) for index in order]
    fitting = max(1, int(np.searchsorted(np.cumsum(needed), most, side="right")))
    return [performances[index] for index in sorted(order[:fitting])]
