"""Any music as token sequences, measured in windows.

The protocol: every token of every sequence is scored exactly once, the begin token never. It
is read in windows of N tokens that slide by N/2; the first window is scored whole, each further one
in its second half, so every token but a sequence's first N/2 is scored with at least N/2 tokens
before it. The mean is over all tokens, not over sequences.
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
from .tokens import BEGIN

__all__ = [
    "Windows",
    "check_window",
    "crop_at",
    "long_enough",
    "nats_per_token",
    "nats_per_token_by_length",
    "windows_of",
]

_TOKENS_AT_ONCE = 8192

# Sequences of one list differ in length.
Tokens = Int64[ndarray, "_"]


def nats_per_token(model: nn.Module, sequences: Iterable[Tokens], *, window: int) -> float:
    """Mean nats per token of some sequences.

    Args:
        model: gives logits `(b, i, vocabulary)` for tokens `(b, i)`.
        sequences: tokens, each with the begin token in front.
        window: tokens that the model sees at once, a multiple of 8.

    Raises:
        ValueError: if there is no token to score, or the model gives no finite numbers.
    """
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    batch = max(1, _TOKENS_AT_ONCE // window)
    total, scored = 0.0, 0
    with torch.inference_mode():
        for inputs, targets in windows_of(sequences, window=window, batch=batch):
            logits = model(inputs.to(device)).double()
            total += float(nats(logits, targets.to(device)).sum())
            scored += int((targets != IGNORE).sum())
    if not scored:
        raise ValueError("nats_per_token: sequences must have tokens, got none")
    if not isfinite(total):
        raise ValueError(f"nats_per_token: logits of the model must be finite, got {total} nats")
    return total / scored


def nats_per_token_by_length(
    model: nn.Module, sequences: Sequence[Tokens], *, window: int
) -> dict[int, float]:
    """Nats per token with windows of N, 2N and 4N tokens, on the same tokens.

    Args:
        model: trained on windows of N tokens.
        sequences: those of fewer than 4N tokens are left out.
        window: N, a multiple of 8.

    Returns:
        Nats per token by window; nothing if no sequence is long enough.
    """
    chosen = long_enough(sequences, window=window)
    if not chosen:
        return {}
    return {
        times * window: nats_per_token(model, chosen, window=times * window) for times in (1, 2, 4)
    }


def long_enough(sequences: Iterable[Tokens], *, window: int) -> list[Tokens]:
    """The sequences of at least 4N tokens.

    Args:
        sequences: tokens, each with the begin token in front.
        window: N.
    """
    return [tokens for tokens in sequences if len(tokens) - 1 >= 4 * window]


def check_window(argument: str, window: int, sequences: Iterable[Tokens]) -> None:
    """Raise if a window would be longer than every sequence, which no longer changes a number.

    Args:
        argument: what the message calls it.
        window: tokens that the model is to see at once.
        sequences: to measure on.

    Raises:
        ValueError: with the longest useful window.
    """
    tokens = max((len(sequence) - 1 for sequence in sequences), default=0)
    longest = -(-tokens // 8) * 8
    if window > longest:
        raise ValueError(
            f"{argument} must be at most {longest}, the longest of these pieces, got {window}"
        )


def windows_of(
    sequences: Iterable[Tokens], *, window: int, batch: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of windows in which every token is a target exactly once.

    Args:
        sequences: tokens, each with the begin token in front.
        window: N, a multiple of 8.
        batch: the most windows at once.

    Yields:
        Inputs and targets `(b, window)`, `IGNORE` where a token is not scored.

    Raises:
        ValueError: if the window is not a positive multiple of 8.
    """
    if window < 8 or window % 8:
        raise ValueError(f"windows_of: window must be a positive multiple of 8, got {window}")
    waiting: list[tuple[ndarray, ndarray]] = []
    for tokens in sequences:
        for one in _windows_in(tokens, window):
            waiting.append(one)
            if len(waiting) == batch:
                yield _stacked(waiting)
                waiting = []
    if waiting:
        yield _stacked(waiting)


class Windows:
    """The batches of `windows_of`, for Lightning: a list would be many loaders to it.

    Args:
        sequences: tokens, each with the begin token in front.
        window: N, a multiple of 8.
        batch: the most windows at once.
    """

    def __init__(self, sequences: Iterable[Tokens], *, window: int, batch: int) -> None:
        self._batches = list(windows_of(sequences, window=window, batch=batch))

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(self._batches)


def crop_at(tokens: Tokens, *, window: int) -> tuple[Tokens, Tokens]:
    """The first window of some tokens as inputs and targets.

    Args:
        tokens: any; what is beyond `window + 1` of them is left out.
        window: N.

    Returns:
        Inputs and targets `(window,)`; targets past the end are `IGNORE`.
    """
    found = tokens[: window + 1]
    inputs, targets = np.full(window, BEGIN), np.full(window, IGNORE)
    inputs[: len(found) - 1], targets[: len(found) - 1] = found[:-1], found[1:]
    return inputs, targets


def _windows_in(tokens: Tokens, window: int) -> Iterator[tuple[ndarray, ndarray]]:
    start, scored = 0, 0
    while scored < len(tokens) - 1:
        inputs, targets = crop_at(tokens[start:], window=window)
        targets[: scored - start] = IGNORE
        yield inputs, targets
        scored = min(start + window, len(tokens) - 1)
        start += window // 2


def _stacked(waiting: Sequence[tuple[ndarray, ndarray]]) -> tuple[Tensor, Tensor]:
    inputs, targets = zip(*waiting, strict=True)
    return torch.from_numpy(np.stack(inputs)), torch.from_numpy(np.stack(targets))
