"""Which entries of a table one program of the tables' backward kernel owns.

Chunks are `(chunks, 3)` int32: the offset in tokens of the first entry, the entry's number, and how
many of up to `n` entries there are. Consecutive entries of a chunk are one token apart.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from .kept import kept

__all__ = ["joint_bias_chunks", "window_chunks"]


@kept
def window_chunks(first: int, rows: int, n: int, device: torch.device) -> Tensor:
    """The rows of a window from offset `first` on, without its first row and its last."""
    row = torch.arange(1, rows - 1, n, device=device)
    return torch.stack([row + first, row, (rows - 1 - row).clamp(max=n)], 1).int()


@kept
def joint_bias_chunks(shape: tuple[int, ...], n: int, device: torch.device) -> Tensor:
    """The entries of a grid's joint bias, by runs along its last axis."""
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
