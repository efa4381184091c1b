"""Which entries of a grid's joint bias one program of the tables' backward kernel owns."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from .kept import kept

__all__ = ["joint_bias_chunks"]


@kept
def joint_bias_chunks(shape: tuple[int, ...], n: int, device: torch.device) -> Tensor:
    """Those of chunks, by runs along the last axis: `(chunks, 3)` int32.

    A chunk has the offset in tokens of its first entry, the entry's number, and how many of up to
    `n` entries there are. Consecutive entries of a chunk are one token apart.
    """
    sizes = [2 * size - 1 for size in shape]
    chunks_per_run = -(-sizes[-1] // n)
    chunk = torch.arange(prod(sizes[:-1]) * chunks_per_run, device=device)
    run, begin = chunk // chunks_per_run, chunk % chunks_per_run * n
    entry = run * sizes[-1] + begin
    count = (sizes[-1] - begin).clamp(max=n)
    # The offsets along the axes before the last, from the number of the run.
    tokens, stride = begin - (shape[-1] - 1), shape[-1]
    for size, offsets in zip(shape[-2::-1], sizes[-2::-1], strict=True):
        tokens = tokens + (run % offsets - (size - 1)) * stride
        run, stride = run // offsets, stride * size
    return torch.stack([tokens, entry, count], 1).int()
