"""Absolute positions that are added to the input, before the first layer.

    y_p = x_p + R_p                                              LearnedAbsolute
    R_p[2c] = sin(p / 10000^(2c/e)),  R_p[2c+1] = cos(p / 10000^(2c/e))     Sinusoidal

- Source: Vaswani et al. 2017, section 3.5, for both; for the learned one also
  Adaloglou's post (see `AbsoluteKeys`).
- Position: `p = start + i`, from 0; a cached decoding step passes its start. Positions count along
  the row: a text behind left padding, or a later one of several packed into a row, starts where it
  stands there and is not as it would be alone.
- Rows: `max_length` (learned); any number, computed as needed (sinusoidal).
- Scale: none. Vaswani et al. multiply the embeddings by `sqrt(e)`; here the caller decides.
- Beyond the table: a learned table repeats its last row, where other implementations fail.
- Elsewhere: tensor2tensor keeps all sines in the first half of the width and all cosines in the
  second; the paper, and this file, alternate them. An odd width ends with a sine.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..checks import (
    check_count,
    check_dtype,
    check_floating,
    check_like_parameter,
    check_number,
)
from ..summed_rows import picked_rows
from .sinusoids import sinusoids

__all__ = ["LearnedAbsolute", "Sinusoidal", "position_rows"]


class Sinusoidal(nn.Module):
    """`x_p + scale * (sin(p w_0), cos(p w_0), sin(p w_1), ...)` with `w_c = 10000^(-2c/e)`.

    Args:
        dim: width e of the input.
        scale: 1 fits inputs of unit variance (Vaswani et al. 2017, section 3.4).

    Raises:
        TypeError: if `scale` is no number.
        ValueError: if `dim` is below 1.

    >>> Sinusoidal(3)(torch.zeros(1, 2, 3))[0, 1, :2]
    tensor([0.8415, 0.5403])
    """

    def __init__(self, dim: int, *, scale: float = 1.0) -> None:
        super().__init__()
        self.dim = check_count("Sinusoidal", "dim", dim)
        self.scale = check_number("Sinusoidal", "scale", scale)

    def forward(self, x: Float[Tensor, "b i e"], start: int = 0) -> Float[Tensor, "b i e"]:
        """`x_p + R_p`; `R` is computed in float32 at least, then cast.

        Args:
            x: input.
            start: position of the first token.

        Raises:
            ShapeError: if `x` has another width or is not floating point.
            ValueError: if `start` is no integer.
        """
        check_floating("Sinusoidal", "x", x, "b i e", {"e": self.dim})
        start = check_count("Sinusoidal", "start", start, least=None)
        at = torch.arange(start, start + x.shape[1], device=x.device)
        work = torch.promote_types(x.dtype, torch.float32)
        return x + (self.scale * sinusoids(at, self.dim, dtype=work)).to(x.dtype)

    def extra_repr(self) -> str:
        """Width and scale."""
        return f"dim={self.dim}" + ("" if self.scale == 1 else f", scale={self.scale:g}")


class LearnedAbsolute(nn.Module):
    """`x_p + R_p` with `max_length` learned rows; later positions share the last one.

    Args:
        dim: width e of the input.
        max_length: number of rows, in tokens.
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        ValueError: if a size is below 1.

    >>> LearnedAbsolute(4, max_length=3)(torch.zeros(1, 5, 4)).shape
    torch.Size([1, 5, 4])
    """

    def __init__(
        self,
        dim: int,
        max_length: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.dim = check_count("LearnedAbsolute", "dim", dim)
        self.max_length = check_count("LearnedAbsolute", "max_length", max_length)
        check_dtype("LearnedAbsolute", dtype)
        self.rows = nn.Parameter(torch.empty(max_length, dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the rows from a normal distribution around 0 with variance `1 / dim`."""
        nn.init.normal_(self.rows, std=self.dim**-0.5)

    def forward(self, x: Float[Tensor, "b i e"], start: int = 0) -> Float[Tensor, "b i e"]:
        """`x_p + R_p`.

        Args:
            x: input.
            start: position of the first token.

        Raises:
            ShapeError: if `x` has another width, dtype or device.
            ValueError: if `start` is no integer or negative.
        """
        check_like_parameter("LearnedAbsolute", "x", x, self.rows, "b i e", {"e": self.dim})
        start = check_count("LearnedAbsolute", "start", start, least=0)
        return x + position_rows(self.rows, x.shape[1], start=start)

    def extra_repr(self) -> str:
        """Width and rows."""
        return f"dim={self.dim}, max_length={self.max_length}"


def position_rows(
    rows: Float[Tensor, "r d"], count: int, *, start: int = 0
) -> Float[Tensor, "{count} d"]:
    """The rows of `count` positions from `start` on; those beyond the table get its last row.

    Args:
        rows: one for each position from 0 on.
        count: number of positions, in tokens.
        start: the first of them, from 0.

    >>> position_rows(torch.tensor([[5.0], [6.0]]), 4).flatten()
    tensor([5., 6., 6., 6.])
    """
    at = torch.arange(start, start + count, device=rows.device)
    return picked_rows(rows, at.clamp(max=rows.shape[0] - 1))
