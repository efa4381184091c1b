"""Dropout of a call that is a part of a larger one: for each pair what the larger one draws.

The same hash as in `native` (`csrc/scores.h`), so that both drop the same pairs for a seed:
SplitMix64 of the seed and the row gives two numbers, which go with the key through 32 bits of
Wellons' hash-prospector. Computed in 64-bit integers, of which torch has the wrapping product.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..inputs import DropoutOrigin
from .plan import Block

__all__ = ["drop_threshold", "dropped_of_larger_call"]

_32_BITS = 0xFFFFFFFF


def drop_threshold(dropout: float) -> int:
    """A weight is dropped where a draw of 32 bits is below it.

    >>> drop_threshold(0.5) == 1 << 31
    True
    """
    return int(dropout * (1 << 32))


def dropped_of_larger_call(
    block: Block, seed: Tensor, dropout: float, origin: DropoutOrigin
) -> Tensor:
    """`(b, h, m, n)`: True where dropout drops a weight.

    Args:
        block: of this call.
        seed: `()`, int64.
        dropout: probability.
        origin: of this call in the larger one.
    """
    device = seed.device
    batch, heads, rows, keys = (
        torch.arange(part.start, part.stop, device=device)
        for part in (*block.queries, block.columns)
    )
    row = (batch[:, None] * origin.heads + origin.first_head + heads).unsqueeze(-1)
    row = row * origin.queries + origin.first_query + rows
    mixed = seed + _signed(0x9E3779B97F4A7C15) * (row + 1)
    mixed = (mixed ^ _shifted(mixed, 30)) * _signed(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ _shifted(mixed, 27)) * _signed(0x94D049BB133111EB)
    mixed = (mixed ^ _shifted(mixed, 31)).unsqueeze(-1)
    draw = (mixed & _32_BITS) + (origin.first_key + keys) * 0x9E3779B9
    draw = draw.bitwise_and_(_32_BITS)
    draw = draw.bitwise_xor_(draw >> 16).mul_(0x21F0AAAD).bitwise_and_(_32_BITS)
    draw.bitwise_xor_(_shifted(mixed, 32))
    draw = draw.bitwise_xor_(draw >> 15).mul_(0x735A2D97).bitwise_and_(_32_BITS)
    return draw.bitwise_xor_(draw >> 15) < drop_threshold(dropout)


def _signed(number: int) -> int:
    """The 64 bits of an unsigned number as those of a signed one."""
    return number - (1 << 64) if number >> 63 else number


def _shifted(x: Tensor, bits: int) -> Tensor:
    """`x >> bits` of the 64 bits as an unsigned number."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
