"""Drawing tokens from a decoder, one cached step at a time."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from relpos.errors import ShapeError

from .decoder import DecoderLM
from .evaluation_mode import evaluating

__all__ = ["sample"]


def sample(
    model: DecoderLM,
    prompt: Int64[Tensor, "b i"],
    steps: int,
    *,
    temperature: float = 1.0,
    top_p: float = 1.0,
    generator: torch.Generator | None = None,
    constrain: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Int64[Tensor, "b total"]:
    """`prompt` followed by `steps` tokens, each drawn from `softmax(logits / temperature)`.

    The model runs in evaluation mode and is left as it was found.

    Args:
        model: gives the logits.
        prompt: at least one token for each sequence.
        steps: number of tokens to add.
        temperature: 1 draws from the model, below 1 plays safer, 0 takes the likeliest token.
        top_p: draws from the fewest tokens whose probabilities reach this sum (Holtzman et al.
            2020, section 3.1); 1 draws from all.
        generator: source of randomness, on the model's device; None means torch's own.
        constrain: called as `constrain(tokens, logits)` with all tokens so far, `(b, n)`, and the
            next one's logits `(b, vocabulary)` before temperature; returns the logits to use,
            `-inf` forbids.

    Returns:
        `(b, i + steps)` tokens.

    Raises:
        ShapeError: if `prompt` is not `(b, i)` with a token.
        ValueError: if a setting is out of range, or `constrain` forbids every token.

    >>> from relpos_tasks.models import DecoderConfig
    >>> model = DecoderLM(DecoderConfig(vocabulary=7, width=8, layers=1, heads=2))
    >>> sample(model, torch.zeros(2, 1, dtype=torch.int64), 3).shape
    torch.Size([2, 4])
    """
    _check(prompt, steps, temperature, top_p)
    length = prompt.shape[1]
    tokens = prompt.new_empty(prompt.shape[0], length + steps)
    tokens[:, :length] = prompt
    chunk, cache = prompt, model.new_cache()
    with evaluating(model), torch.no_grad():
        for step in range(steps):
            logits = model(chunk, cache)[:, -1].float()
            if constrain is not None:
                logits = constrain(tokens[:, : length + step], logits)
            chunk = _draw(logits, step, temperature, top_p, generator)
            tokens[:, length + step] = chunk[:, 0]
    return tokens


def _draw(
    logits: Float[Tensor, "b vocabulary"],
    step: int,
    temperature: float,
    top_p: float,
    generator: torch.Generator | None,
) -> Int64[Tensor, "b 1"]:
    best, token = logits.max(dim=-1, keepdim=True)
    if not best.isfinite().all():
        raise ValueError(
            f"sample: logits must be finite for a token of every sequence, got none at step {step}"
        )
    # A smaller temperature is no number to divide by; its limit is the likeliest token.
    if temperature < torch.finfo(logits.dtype).tiny:
        return token
    # Nor is a larger one than the largest; its limit draws alike from all that is not forbidden.
    probabilities = ((logits - best) / min(temperature, torch.finfo(logits.dtype).max)).softmax(-1)
    if top_p < 1:
        probabilities = _nucleus(probabilities, top_p)
    return torch.multinomial(probabilities, 1, generator=generator)


def _nucleus(probabilities: Float[Tensor, "b n"], top_p: float) -> Float[Tensor, "b n"]:
    """The probabilities of the fewest tokens that reach `top_p`, zero elsewhere, not rescaled."""
    ordered, index = probabilities.sort(dim=-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    # The likeliest stays even if `top_p` is 0 in the dtype of the probabilities.
    ordered = ordered.masked_fill((before >= top_p) & (before > 0), 0)
    return torch.zeros_like(probabilities).scatter(-1, index, ordered)


def _check(prompt: Tensor, steps: int, temperature: float, top_p: float) -> None:
    if prompt.ndim != 2 or prompt.shape[1] == 0:
        raise ShapeError(f"sample: prompt must be (b, i) with i >= 1, got {tuple(prompt.shape)}")
    if steps < 0:
        raise ValueError(f"sample: steps must be >= 0, got {steps}")
    if not (isfinite(temperature) and temperature >= 0):
        raise ValueError(f"sample: temperature must be a number >= 0, got {temperature}")
    if not 0 < top_p <= 1:
        raise ValueError(f"sample: top_p must be in 0 < top_p <= 1, got {top_p}")
