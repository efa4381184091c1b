"""New performances from a trained model, begun or continued."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Int64
from numpy import ndarray
from torch import Tensor

from ...models.decoder import DecoderLM
from ...models.generation import sample
from ...models.threads import one_thread
from ...training.limits import check_seed
from ..tokens import BEGIN
from .performance import STEPS_PER_SECOND, Performance
from .playing import Keyboard
from .tokens import SHIFT, decode, encode, steps_after

__all__ = ["MAX_SECONDS", "check_prime", "check_seconds", "perform"]

MAX_SECONDS = 900
# Of what is gone on from: longer than a recital's longest piece, and its sound still fits a memory.
_LONGEST_PRIME = 3600


def perform(
    model: DecoderLM,
    *,
    window: int,
    seconds: float = 30.0,
    prime: Performance | None = None,
    temperature: float = 0.9,
    top_p: float = 0.95,
    seed: int = 0,
    name: str = "performance",
    progress: Callable[[int], None] | None = None,
) -> Performance:
    """A performance, or a given one and how it goes on.

    The model sees at most a window of tokens, as in training: whenever it is full, its second half
    is kept. Only what can be played is drawn (`Keyboard`).

    Args:
        model: a trained model.
        window: tokens in a training sequence.
        seconds: how long; with a prime, how long after it.
        prime: what to go on from; None begins anew.
        temperature: of the sampling; 0 takes the likeliest token.
        top_p: sample among the likeliest tokens that have this much probability together.
        seed: of the sampling.
        name: of the performance.
        progress: called with the whole seconds that are done.

    Returns:
        The prime and what follows it; what still sounds at the end is ended there.

    Raises:
        ValueError: if a number is out of range, or the prime longer than an hour.
    """
    check_seconds("perform: seconds", seconds)
    if prime is not None:
        check_prime("perform: prime", prime)
    generator = torch.Generator().manual_seed(check_seed("perform", seed))
    tokens = np.array([BEGIN]) if prime is None else encode(prime)
    begin = int(steps_after(tokens)[-1])
    end = begin + round(seconds * STEPS_PER_SECOND)
    with one_thread():
        while (now := int(steps_after(tokens)[-1])) < end:
            if progress is not None:
                progress((now - begin) // STEPS_PER_SECOND)
            seen = min(len(tokens), window // 2)
            drawn = sample(
                model,
                torch.from_numpy(tokens[-seen:])[None],
                window - seen,
                temperature=temperature,
                top_p=top_p,
                generator=generator,
                constrain=_playable(tokens, seen),
            )
            tokens = np.append(tokens, drawn[0, seen:].numpy())
    return decode(_until(tokens, end), name=name)


def check_seconds(argument: str, seconds: float) -> None:
    """Raise unless a performance may last so long.

    Args:
        argument: what the message calls it.
        seconds: any number.

    Raises:
        ValueError: unless it is at least a step of 10 ms and at most `MAX_SECONDS`.
    """
    least = 1 / STEPS_PER_SECOND
    if not least <= seconds <= MAX_SECONDS:
        raise ValueError(f"{argument} must be in {least:g}..{MAX_SECONDS}, got {seconds:g}")


def check_prime(argument: str, prime: Performance) -> None:
    """Raise if a performance is too long to go on from.

    Args:
        argument: what the message calls it.
        prime: any.

    Raises:
        ValueError: if it lasts longer than an hour.
    """
    if prime.seconds > _LONGEST_PRIME:
        raise ValueError(
            f"{argument}: must be at most {_LONGEST_PRIME:,} seconds long, got {prime.seconds:,.0f}"
        )


def _playable(before: Int64[ndarray, "tokens"], seen: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Forbids what cannot be played after these tokens, of which the model sees the last ones."""
    keyboard = Keyboard()
    keyboard.play(before.tolist())
    played = seen

    def constrain(tokens: Tensor, logits: Tensor) -> Tensor:
        nonlocal played
        keyboard.play(tokens[0, played:].tolist())
        played = tokens.shape[1]
        return logits.masked_fill(torch.from_numpy(~keyboard.allowed()), -torch.inf)

    return constrain


def _until(tokens: Int64[ndarray, "tokens"], end: int) -> Int64[ndarray, "kept"]:
    """The tokens up to a step, the last shift cut short so that it ends there."""
    times = steps_after(tokens)
    kept = tokens[times < end]
    return np.append(kept, SHIFT + end - int(times[len(kept) - 1]) - 1)
