"""Whether buckets that widen with the distance have a last one, beyond which nothing changes."""

from __future__ import annotations

__all__ = ["NEVER_END", "t5_buckets_end"]

NEVER_END = (
    "its largest distance is among those with buckets of their own, so that buckets never end"
)


def t5_buckets_end(buckets: int, furthest: int, *, bidirectional: bool) -> bool:
    """Whether T5's formula gives all distances from `furthest` on the last bucket.

    With a `furthest` among the buckets of single distances its logarithms are negative, and
    transformers computes on.

    Args:
        buckets: of both sides together.
        furthest: what the configuration calls the maximal distance, in tokens.
        bidirectional: whether keys ahead have half of them.
    """
    side = buckets // 2 if bidirectional else buckets
    return furthest > side // 2
