"""What counting gets: nats per token of tables of counts over the voices before and above.

The smoothing is that of `counting`.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from .counting import nats_of_counts
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
    seen, asked = _contexts(train, vocabulary), _contexts(held_out, vocabulary)
    if not len(seen[1]) or not len(asked[1]):
        raise ValueError(
            "counting_baselines: train and held_out must have tokens, "
            f"got {len(seen[1])} and {len(asked[1])}"
        )
    size = max(vocabulary.size, STEPS_PER_QUARTER, len(VOICES))
    # The voice alone is no baseline.
    return dict(zip(_COLUMNS, nats_of_counts(seen, asked, size=size)[1:], strict=True))


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
