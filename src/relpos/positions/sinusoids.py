"""The waves of Vaswani et al. (2017, section 3.5), for whole positions or distances."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from .angles import angles_at, frequencies, less_whole_turns

__all__ = ["sinusoids"]


def sinusoids(
    at: Int64[Tensor, "r"],
    dim: int,
    *,
    layout: Literal["interleaved", "halves"] = "interleaved",
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "r {dim}"]:
    """`(sin(p w_c), cos(p w_c))` of each `p` in `at`, with `w_c = 10000^(-2c/dim)`.

    Angles are made in float64, sines and cosines in float32 at least. An odd width has one cosine
    less.

    Args:
        at: positions or distances, in tokens.
        dim: width of a row.
        layout: sines and cosines in turn, or all sines before all cosines.
        dtype: of the result; None means torch's default.

    >>> sinusoids(torch.tensor([0, 1]), 4, layout="halves")
    tensor([[0.0000, 0.0000, 1.0000, 1.0000],
            [0.8415, 0.0100, 0.5403, 0.9999]])
    """
    dtype = torch.get_default_dtype() if dtype is None else dtype
    inv_freq = frequencies(10000.0, dim, device=at.device)
    angles = less_whole_turns(angles_at(at, inv_freq), torch.promote_types(dtype, torch.float32))
    if layout == "halves":
        return torch.cat((angles.sin(), angles[:, : dim // 2].cos()), dim=1).to(dtype)
    return torch.stack((angles.sin(), angles.cos()), dim=2).flatten(1)[:, :dim].to(dtype)
