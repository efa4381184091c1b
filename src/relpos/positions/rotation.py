"""Rotations of pairs of numbers by angles: what every rotary scheme does to queries and keys.

    (a, b) -> (a cos - b sin, b cos + a sin)

Angles are made in float64: in float32 those of position 100000 would be off by 0.004. Whole turns
are then taken away, and cosine, sine and rotation are computed in float32 at least.
"""

from __future__ import annotations

from math import pi

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["frequencies", "positions", "rotate"]


def wide_dtype(device: torch.device | None) -> torch.dtype:
    """The dtype of angles: float64, or float32 where the device has no other.

    Args:
        device: where they are made; None means the default.
    """
    return torch.float32 if device is not None and device.type == "mps" else torch.float64


def frequencies(
    theta: float, dim: int, *, device: torch.device | None = None
) -> Float[Tensor, "{dim}//2"]:
    """`theta^(-2c/dim)` for each pair `c`, in radians per token (Su et al. 2021, eq. 15).

    Args:
        theta: the base; the slowest pair turns once in nearly `2 pi theta` tokens.
        dim: numbers that are rotated, twice as many as there are pairs.
        device: where the result is made.

    >>> frequencies(100.0, 4)
    tensor([1.0000, 0.1000], dtype=torch.float64)
    """
    even = torch.arange(0, dim, 2, device=device, dtype=wide_dtype(device))
    return theta ** (-even / dim)


def positions(start: int, count: int, *, device: torch.device | None = None) -> Float[Tensor, "n"]:
    """`start, start + 1, ...` in the dtype of angles.

    Args:
        start: the first position, in tokens.
        count: how many.
        device: where the result is made.
    """
    return torch.arange(start, start + count, device=device).to(wide_dtype(device))


def rotate(
    x: Float[Tensor, "b h n d"],
    angles: Float[Tensor, "n c"],
    *,
    interleaved: bool,
    factor: float | Float[Tensor, "n c"] = 1.0,
) -> Float[Tensor, "b h n d"]:
    """`x` with its first `2 c` numbers rotated in pairs, in the dtype of `x`.

    Args:
        x: queries or keys.
        angles: of each token and pair, in radians.
        interleaved: whether pair `c` is the numbers `2 c` and `2 c + 1`; else `c` and `c` plus the
            number of pairs.
        factor: what the rotated numbers are multiplied by.

    >>> rotate(torch.tensor([[[[1.0, 0.0]]]]), torch.tensor([[pi / 2]]), interleaved=True).round()
    tensor([[[[-0., 1.]]]])
    """
    work = torch.promote_types(x.dtype, torch.float32)
    if work == torch.float32:
        angles = angles.remainder(2 * pi)
    factor = factor.to(work) if isinstance(factor, Tensor) else factor
    cos, sin = angles.to(work).cos() * factor, angles.to(work).sin() * factor

    width = 2 * angles.shape[1]
    turned = x[..., :width].to(work)
    if interleaved:
        a, b = turned.unflatten(-1, (-1, 2)).unbind(-1)
        turned = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
    else:
        a, b = turned.chunk(2, dim=-1)
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    turned = turned.to(x.dtype)
    return turned if width == x.shape[3] else torch.cat((turned, x[..., width:]), dim=-1)
