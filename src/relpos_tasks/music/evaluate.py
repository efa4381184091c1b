"""Held-out nats per token of pieces, by the protocol of `windows`.

Windows begin where training crops may begin. The length test keeps the model and the tokens and
changes the window alone, to twice and four times the length of training.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from .piece import VOICES, Piece
from .tokens import Vocabulary
from .windows import nats_per_token, nats_per_token_by_length

__all__ = ["check_window", "held_out_nats", "lengths_test", "long_enough"]


def held_out_nats(
    model: nn.Module, pieces: Iterable[Piece], vocabulary: Vocabulary, *, window: int
) -> float:
    """Mean nats per token of some pieces.

    Args:
        model: gives logits `(b, i, vocabulary)` for tokens `(b, i)`.
        pieces: pieces that were not trained on.
        vocabulary: it must cover them.
        window: tokens that the model sees at once, a multiple of 8.

    Returns:
        Nats per token.

    Raises:
        ValueError: if there is no token to score, or the model gives no finite numbers.
    """
    return nats_per_token(model, map(vocabulary.encode, pieces), window=window)


def check_window(argument: str, window: int, pieces: Iterable[Piece]) -> None:
    """Raise if a window would be longer than every piece, which no longer changes a number.

    Args:
        argument: what the message calls it.
        window: tokens that the model is to see at once.
        pieces: to measure on.

    Raises:
        ValueError: with the longest useful window.
    """
    tokens = max((len(VOICES) * piece.steps for piece in pieces), default=0)
    longest = -(-tokens // 8) * 8
    if window > longest:
        raise ValueError(
            f"{argument} must be at most {longest}, the longest held-out piece, got {window}"
        )


def lengths_test(
    model: nn.Module, pieces: Iterable[Piece], vocabulary: Vocabulary, *, window: int
) -> dict[int, float]:
    """Nats per token with windows of N, 2N and 4N tokens, on the same tokens.

    Args:
        model: trained on windows of N tokens.
        pieces: pieces that were not trained on; those shorter than 4N are left out.
        vocabulary: it must cover them.
        window: N, a multiple of 8.

    Returns:
        Nats per token by window; nothing if no piece is long enough.
    """
    chosen = long_enough(pieces, window=window)
    return nats_per_token_by_length(model, list(map(vocabulary.encode, chosen)), window=window)


def long_enough(pieces: Iterable[Piece], *, window: int) -> list[Piece]:
    """The pieces of at least 4N tokens.

    Args:
        pieces: any pieces.
        window: N.
    """
    return [piece for piece in pieces if len(VOICES) * piece.steps >= 4 * window]
