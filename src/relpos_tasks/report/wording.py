"""Numbers as a report writes them."""

from __future__ import annotations

__all__ = ["count", "duration"]


def count(number: int) -> str:
    """A whole number with commas.

    >>> count(612345)
    '612,345'
    """
    return f"{number:,}"


def duration(seconds: float) -> str:
    """Minutes and seconds, rounded to the second.

    >>> duration(245.4)
    '4 min 05 s'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
