"""Tables of counts, smoothed without anything to tune: what counting alone gets.

Witten and Bell (1991), method C, in the interpolated form of Chen and Goodman (1999): with
n(c, w) the count of token w in context c, n(c) its sum, and t(c) the different tokens seen there,

    p(w | c) = (n(c, w) + t(c) * p(w | shorter c)) / (n(c) + t(c))

down to the uniform distribution over the vocabulary.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Int64
from numpy import ndarray

__all__ = ["nats_of_counts"]


def nats_of_counts(
    seen: tuple[Int64[ndarray, "seen columns"], Int64[ndarray, "seen"]],
    asked: tuple[Int64[ndarray, "asked columns"], Int64[ndarray, "asked"]],
    *,
    size: int,
) -> list[float]:
    """Nats per token with a context of the first column, of the first two, and so on.

    Args:
        seen: contexts to count in, and the token that came in each.
        asked: contexts to measure in, and the token that came in each.
        size: of the vocabulary; all numbers are below it.

    Returns:
        A number for each column.
    """
    (seen_columns, seen_tokens), (asked_columns, asked_tokens) = seen, asked
    nats = []
    probability = np.full(len(asked_tokens), 1 / size)
    seen_key, asked_key = np.zeros_like(seen_tokens), np.zeros_like(asked_tokens)
    for column in range(seen_columns.shape[1]):
        seen_key = seen_key * size + seen_columns[:, column]
        asked_key = asked_key * size + asked_columns[:, column]
        seen_pair, asked_pair = seen_key * size + seen_tokens, asked_key * size + asked_tokens
        total = _count(seen_key, asked_key)
        kinds = _count(np.unique(seen_pair) // size, asked_key)
        # A context never seen says nothing: the shorter one stands.
        smoothed = (_count(seen_pair, asked_pair) + kinds * probability) / np.maximum(
            total + kinds, 1
        )
        probability = np.where(total > 0, smoothed, probability)
        nats.append(float(-np.log(probability).mean()))
    return nats


def _count(keys: Int64[ndarray, "seen"], asked: Int64[ndarray, "asked"]) -> Int64[ndarray, "asked"]:
    """How often each asked key stands among the keys."""
    kinds, counts = np.unique(keys, return_counts=True)
    index = np.minimum(np.searchsorted(kinds, asked), len(kinds) - 1)
    found: Bool[ndarray, "asked"] = kinds[index] == asked
    return np.where(found, counts[index], 0)
