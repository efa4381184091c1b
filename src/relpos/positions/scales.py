"""The scale of an attention, for schemes whose own term has none or is a bias."""

from __future__ import annotations

from math import sqrt

__all__ = ["scale_or_default"]


def scale_or_default(scale: float | None, width: int) -> float:
    """`scale`, or `1 / sqrt(width)` for None, which attention means by it too.

    Rows that attention is to multiply by its scale although the scheme has none are divided by it.

    Args:
        scale: the attention's scale.
        width: d, of one head.

    >>> scale_or_default(None, 16), scale_or_default(0.5, 16)
    (0.25, 0.5)
    """
    return 1 / sqrt(width) if scale is None else scale
