"""Rotations of pairs of numbers by angles: what every rotary scheme does to queries and keys.

    (a, b) -> (a cos - b sin, b cos + a sin)

Cosine, sine and rotation are computed in float32 at least; the angles are those of `angles.py`.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from .angles import less_whole_turns

__all__ = ["rotate"]


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

    >>> quarter = torch.tensor([[torch.pi / 2]])
    >>> rotate(torch.tensor([[[[1.0, 0.0]]]]), quarter, interleaved=True).round()
    tensor([[[[-0., 1.]]]])
    """
    work = torch.promote_types(x.dtype, torch.float32)
    angles = less_whole_turns(angles, work)
    factor = factor.to(work) if isinstance(factor, Tensor) else factor
    cos, sin = angles.cos() * factor, angles.sin() * factor

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
