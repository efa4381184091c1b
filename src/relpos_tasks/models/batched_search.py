"""Beam search for any number of sources, in batches of like length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Int64
from torch import Tensor

from relpos.checks import check_count

from .beam_search import BeamSearch, Hypothesis, beam_search
from .encoder_decoder import EncoderDecoder
from .padding import padded

__all__ = ["beam_search_all", "by_length"]


def beam_search_all(
    model: EncoderDecoder,
    sources: Sequence[Sequence[int]],
    prompt: Sequence[int],
    how: BeamSearch,
    *,
    padding: int = 0,
    tokens: int = 4096,
    progress: Callable[[int], None] | None = None,
) -> list[list[Hypothesis]]:
    """`beam_search` of every source, in the order in which they were given.

    Sources of like length are searched together, the longest first, so that what does not fit the
    memory is known at once. A source's result does not depend on those beside it, but for the
    rounding of sums.

    Args:
        model: gives the logits, on its own device.
        sources: tokens of each source, without padding.
        prompt: how every target begins, the begin token at least.
        how: the settings of the search.
        padding: token behind the end of a shorter source; it may be one that sources have, too.
        tokens: the most source tokens in a batch, padding and hypotheses counted.
        progress: called with the sources that are done.

    Raises:
        ValueError: if the search refuses a setting.
    """
    check_count("beam_search_all", "tokens", tokens)
    device = model.source_embedding.weight.device
    found: dict[int, list[Hypothesis]] = {}
    lengths = [len(source) for source in sources]
    for batch in by_length(lengths, tokens=max(1, tokens // how.beam)):
        # Of an empty source all is padding.
        source = padded([sources[n] or [padding] for n in batch], padding).to(device)
        found |= zip(
            batch,
            beam_search(
                model,
                source,
                torch.tensor([[*prompt]] * len(batch), device=device),
                how,
                source_padding=_behind_end([lengths[n] for n in batch], source),
            ),
            strict=True,
        )
        if progress is not None:
            progress(len(found))
    return [found[n] for n in range(len(sources))]


def by_length(lengths: Sequence[int], *, tokens: int) -> Iterator[list[int]]:
    """Numbers of sequences in batches of like length, the longest first.

    Args:
        lengths: of the sequences, in tokens.
        tokens: the most in a batch, padding counted; a longer sequence is a batch by itself.

    >>> list(by_length([3, 9, 2, 4], tokens=8))
    [[1], [3, 0], [2]]
    """
    batch: list[int] = []
    for n in sorted(range(len(lengths)), key=lambda n: -lengths[n]):
        if batch and (len(batch) + 1) * lengths[batch[0]] > tokens:
            yield batch
            batch = []
        batch.append(n)
    if batch:
        yield batch


def _behind_end(lengths: Sequence[int], source: Int64[Tensor, "b j"]) -> Tensor | None:
    """Where the padding is; None where there is none, which costs less."""
    if min(lengths) == source.shape[1]:
        return None
    at = torch.arange(source.shape[1], device=source.device)
    return at >= torch.tensor(lengths, device=source.device)[:, None]
