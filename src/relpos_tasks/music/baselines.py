"""What counting gets: nats per token of tables of counts, smoothed without anything to tune.

Witten and Bell (1991), method C, in the interpolated form of Chen and Goodman (1999): with
n(c, w) the count of token w in context c, n(c) its sum, and t(c) the different tokens seen there,

    p(w | c) = (n(c, w) + t(c) * p(w | shorter c)) / (n(c) + t(c))

down to the uniform distribution over the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from jaxtyping import Bool, Int64
from numpy import ndarray

from .piece import STEPS_PER_QUARTER, VOICES, Piece
from .tokens import BEGIN, Vocabulary

__all__ = ["counting_baselines"]

# Each name adds one column to the context; the voice itself is always there.
_COLUMNS = ("previous pitch", "+ beat", "+ voice above")


def counting_baselines(
    train: Iterable[Piece], held_out: Iterable[Piece], *, vocabulary: Vocabulary
) -> dict[str, float]:
    """Held-out nats per token of three tables of counts; the begin token is not scored.

    Args:
        train: pieces to count in, as they are (not transposed).
        held_out: pieces to measure on.
        vocabulary: the tokens; it must cover all pieces.

    Returns:
        Nats per token by context, each with those before it: the voice and its previous token
        (`"previous pitch"`), the sixteenth of the beat (`"+ beat"`), and the token of the voice
        above in the same step, none for the soprano (`"+ voice above"`).

    Raises:
        ValueError: if there is no piece, or one does not fit the vocabulary.
    """
    seen, seen_tokens = _contexts(train, vocabulary)
    asked, asked_tokens = _contexts(held_out, vocabulary)
    if not len(seen_tokens) or not len(asked_tokens):
        raise ValueError(
            "counting_baselines: train and held_out must have tokens, "
            f"got {len(seen_tokens)} and {len(asked_tokens)}"
        )
    radix = max(vocabulary.size, STEPS_PER_QUARTER, len(VOICES))
    nats = {}
    probability = np.full(len(asked_tokens), 1 / vocabulary.size)
    seen_key, asked_key = np.zeros_like(seen_tokens), np.zeros_like(asked_tokens)
    for name, column in zip(("voice", *_COLUMNS), range(seen.shape[1]), strict=True):
        seen_key = seen_key * radix + seen[:, column]
        asked_key = asked_key * radix + asked[:, column]
        seen_pair, asked_pair = seen_key * radix + seen_tokens, asked_key * radix + asked_tokens
        total = _count(seen_key, asked_key)
        kinds = _count(np.unique(seen_pair) // radix, asked_key)
        # A context never seen says nothing: the shorter one stands.
        smoothed = (_count(seen_pair, asked_pair) + kinds * probability) / np.maximum(
            total + kinds, 1
        )
        probability = np.where(total > 0, smoothed, probability)
        nats[name] = float(-np.log(probability).mean())
    return {name: nats[name] for name in _COLUMNS}


def _contexts(
    pieces: Iterable[Piece], vocabulary: Vocabulary
) -> tuple[Int64[ndarray, "tokens 4"], Int64[ndarray, "tokens"]]:
    """Columns: voice, its previous token, sixteenth of the beat, token of the voice above."""
    contexts = [np.zeros((0, 4), np.int64)]
    tokens = [np.zeros(0, np.int64)]
    for piece in pieces:
        grid = vocabulary.encode(piece)[1:].reshape(-1, len(VOICES))
        previous, above = np.full_like(grid, BEGIN), np.full_like(grid, BEGIN)
        previous[1:], above[:, 1:] = grid[:-1], grid[:, :-1]
        voice = np.broadcast_to(np.arange(len(VOICES)), grid.shape)
        beat = np.broadcast_to((piece.bar_steps % STEPS_PER_QUARTER)[:, None], grid.shape)
        columns = [column.ravel() for column in (voice, previous, beat, above)]
        contexts.append(np.stack(columns, axis=1).astype(np.int64))
        tokens.append(grid.ravel())
    return np.concatenate(contexts), np.concatenate(tokens)


def _count(keys: Int64[ndarray, "seen"], asked: Int64[ndarray, "asked"]) -> Int64[ndarray, "asked"]:
    """How often each asked key stands among the keys."""
    kinds, counts = np.unique(keys, return_counts=True)
    index = np.minimum(np.searchsorted(kinds, asked), len(kinds) - 1)
    found: Bool[ndarray, "asked"] = kinds[index] == asked
    return np.where(found, counts[index], 0)
