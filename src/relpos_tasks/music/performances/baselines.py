"""What counting gets on event tokens: tables over the token before, the two and the three before.

The smoothing is that of `counting`.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from ..counting import nats_of_counts
from ..tokens import BEGIN
from .tokens import SIZE

__all__ = ["counting_baselines"]

_NAMES = ("previous token", "+ the one before", "+ the third")


def counting_baselines(
    train: Iterable[Int64[ndarray, "_"]], held_out: Iterable[Int64[ndarray, "_"]]
) -> dict[str, float]:
    """Held-out nats per token of three tables of counts; begin tokens are not scored.

    Args:
        train: sequences to count in, each with the begin token in front.
        held_out: sequences to measure on.

    Returns:
        Nats per token by context, each with those before it.

    Raises:
        ValueError: if there is no token to count or to score.
    """
    seen, asked = _contexts(train), _contexts(held_out)
    if not len(seen[1]) or not len(asked[1]):
        raise ValueError(
            "counting_baselines: train and held_out must have tokens, "
            f"got {len(seen[1])} and {len(asked[1])}"
        )
    return dict(zip(_NAMES, nats_of_counts(seen, asked, size=SIZE), strict=True))


def _contexts(
    sequences: Iterable[Int64[ndarray, "_"]],
) -> tuple[Int64[ndarray, "tokens 3"], Int64[ndarray, "tokens"]]:
    """The three tokens before each token, the nearest first; before the first is `BEGIN`."""
    columns, tokens = [np.zeros((0, len(_NAMES)), np.int64)], [np.zeros(0, np.int64)]
    for sequence in sequences:
        behind = len(_NAMES) - 1
        padded = np.append(np.full(behind, BEGIN), sequence)
        before = [padded[behind - n : len(padded) - 1 - n] for n in range(len(_NAMES))]
        columns.append(np.stack(before, axis=1))
        tokens.append(sequence[1:])
    return np.concatenate(columns), np.concatenate(tokens)
