"""Buckets that widen with the distance: whether there is a last one, and their rows by offset."""

from __future__ import annotations

from jaxtyping import Float, Int64
from torch import Tensor, nn

from ...summed_rows import picked_rows

__all__ = ["NEVER_END", "rows_of_buckets", "t5_buckets_end"]

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


def rows_of_buckets(embedding: nn.Module, buckets: Int64[Tensor, "r"]) -> Float[Tensor, "h r"]:
    """The bias of each bucket for each head, whose gradient is summed in 32 bits at least.

    Args:
        embedding: gives a row of `h` numbers for each bucket. Where it is more than torch's own,
            plainly used, it is called, and sums as it does.
        buckets: one for each offset.
    """
    if type(embedding) is nn.Embedding and not (
        embedding.padding_idx is not None
        or embedding.max_norm is not None
        or embedding.sparse
        or embedding.scale_grad_by_freq
        or embedding._forward_hooks
        or embedding._forward_pre_hooks
        or embedding._backward_hooks
        or embedding._backward_pre_hooks
        or "forward" in vars(embedding)  # as accelerate replaces it
    ):
        return picked_rows(embedding.weight, buckets).mT
    return embedding(buckets).mT
