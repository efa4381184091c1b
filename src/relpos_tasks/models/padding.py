"""Sequences of unlike lengths as one tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int64
from torch import Tensor

__all__ = ["padded"]


def padded(sequences: Sequence[Sequence[int]], padding: int) -> Int64[Tensor, "b longest"]:
    """The sequences as rows, each filled up behind its end.

    Args:
        sequences: tokens.
        padding: what to fill up with.

    >>> padded([[1, 2, 3], [4]], 0)
    tensor([[1, 2, 3],
            [4, 0, 0]])
    """
    longest = max(map(len, sequences), default=0)
    rows = [[*sequence, *[padding] * (longest - len(sequence))] for sequence in sequences]
    return torch.tensor(rows, dtype=torch.int64).reshape(len(sequences), longest)
