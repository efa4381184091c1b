"""Held-out nats per token.

The protocol: every token of every piece is scored exactly once, the begin token never. A piece is
read in windows of N tokens that slide by N/2; the first window is scored whole, each further one
in its second half, so every token but a piece's first N/2 is scored with at least N/2 tokens before
it. Windows begin where training crops may begin. The mean is over all tokens, not over pieces.

The length test keeps the model and the tokens and changes N alone, to twice and four times the
length of training.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import isfinite

import numpy as np
import torch
from jaxtyping import Int64
from numpy import ndarray
from torch import Tensor, nn

from ..training.language_model import IGNORE, nats
from .piece import VOICES, Piece
from .tokens import BEGIN, Vocabulary

__all__ = ["check_window", "held_out_nats", "lengths_test", "long_enough", "windows"]

_TOKENS_AT_ONCE = 8192


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
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    batch = max(1, _TOKENS_AT_ONCE // window)
    total, scored = 0.0, 0
    with torch.inference_mode():
        for inputs, targets in windows(pieces, vocabulary, window=window, batch=batch):
            logits = model(inputs.to(device)).double()
            total += float(nats(logits, targets.to(device)).sum())
            scored += int((targets != IGNORE).sum())
    if not scored:
        raise ValueError("held_out_nats: pieces must have tokens, got none")
    if not isfinite(total):
        raise ValueError(f"held_out_nats: logits of the model must be finite, got {total} nats")
    return total / scored


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
    if not chosen:
        return {}
    return {
        times * window: held_out_nats(model, chosen, vocabulary, window=times * window)
        for times in (1, 2, 4)
    }


def long_enough(pieces: Iterable[Piece], *, window: int) -> list[Piece]:
    """The pieces of at least 4N tokens.

    Args:
        pieces: any pieces.
        window: N.
    """
    return [piece for piece in pieces if len(VOICES) * piece.steps >= 4 * window]


def windows(
    pieces: Iterable[Piece], vocabulary: Vocabulary, *, window: int, batch: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of windows in which every token is a target exactly once.

    Args:
        pieces: any pieces.
        vocabulary: it must cover them.
        window: N, a multiple of 8.
        batch: the most windows at once.

    Yields:
        Inputs and targets `(b, window)`, `IGNORE` where a token is not scored.

    Raises:
        ValueError: if the window is not a positive multiple of 8.
    """
    if window < 8 or window % 8:
        raise ValueError(f"windows: window must be a positive multiple of 8, got {window}")
    waiting: list[tuple[ndarray, ndarray]] = []
    for piece in pieces:
        for one in _windows_of(vocabulary.encode(piece), window):
            waiting.append(one)
            if len(waiting) == batch:
                yield _stacked(waiting)
                waiting = []
    if waiting:
        yield _stacked(waiting)


def _windows_of(tokens: Int64[ndarray, "tokens"], window: int) -> Iterator[tuple[ndarray, ndarray]]:
    targets_left = len(tokens) - 1
    start, scored = 0, 0
    while scored < targets_left:
        found = tokens[start : start + window + 1]
        inputs, targets = np.full(window, BEGIN), np.full(window, IGNORE)
        inputs[: len(found) - 1] = found[:-1]
        new = slice(scored - start, len(found) - 1)
        targets[new] = found[1:][new]
        yield inputs, targets
        scored = start + len(found) - 1
        start += window // 2


def _stacked(waiting: Sequence[tuple[ndarray, ndarray]]) -> tuple[Tensor, Tensor]:
    inputs, targets = zip(*waiting, strict=True)
    return torch.from_numpy(np.stack(inputs)), torch.from_numpy(np.stack(targets))
