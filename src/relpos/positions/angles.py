"""Angles that grow with the position: what rotations and sinusoids are made of.

They are made in float64: in float32 those of position 100000 would be off by 0.004. Whole turns are
then taken away, so that what is left loses nothing in float32. Positions are exact up to 2^53; the
angle of position `p` is off by about `p 2^-52` (of the frequency, of its product with `p`, and of
2 pi a rounding each), which is float32's own rounding at 250 million.
"""

from __future__ import annotations

from math import pi

import torch
from jaxtyping import Float, Int64
from torch import Tensor

__all__ = ["angle_dtype", "angles_at", "frequencies", "less_whole_turns"]


def angle_dtype(device: torch.device | None) -> torch.dtype:
    """The dtype of angles: float64, or float32 where the device has no other.

    Args:
        device: where they are made; None means the default.
    """
    return torch.float32 if device is not None and device.type == "mps" else torch.float64


def frequencies(
    theta: float, dim: int, *, device: torch.device | None = None
) -> Float[Tensor, "({dim}+1)//2"]:
    """`theta^(-2c/dim)` for each pair `c`, in radians per token (Su et al. 2021, eq. 15).

    Args:
        theta: the base; the slowest pair turns once in nearly `2 pi theta` tokens.
        dim: width, twice as many as there are pairs; an odd one ends with half a pair.
        device: where the result is made.

    >>> frequencies(100.0, 4)
    tensor([1.0000, 0.1000], dtype=torch.float64)
    """
    even = torch.arange(0, dim, 2, device=device, dtype=angle_dtype(device))
    return theta ** (-even / dim)


def angles_at(
    at: Int64[Tensor, "n"] | Float[Tensor, "n"], inv_freq: Float[Tensor, "c"]
) -> Float[Tensor, "n c"]:
    """`at[n] * inv_freq[c]`, in radians, in the dtype of the frequencies.

    Args:
        at: positions, distances or coordinates, in tokens.
        inv_freq: frequencies, in radians per token.
    """
    return at.to(inv_freq.dtype)[:, None] * inv_freq


def less_whole_turns(angles: Float[Tensor, "n c"], dtype: torch.dtype) -> Float[Tensor, "n c"]:
    """`angles` in a dtype of which a large one would have lost its digits.

    Args:
        angles: in radians.
        dtype: float32, or float64, in which they stay as they are.

    >>> less_whole_turns(torch.tensor([[20000 * pi + 0.3]], dtype=torch.float64), torch.float32)
    tensor([[0.3000]])
    """
    return (angles.remainder(2 * pi) if dtype == torch.float32 else angles).to(dtype)
