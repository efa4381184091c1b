"""What rounding to 16 bits took off an output, which backward has beside it.

Backward subtracts `delta_i = dO_i . o_i` from every gradient of the row's weights, and the
gradients of tables and biases sum these over all rows: where values have a mean, an output of 8 or
11 bits would leave an error there that grows with the number of keys. Two numbers of 16 bits have
nearly twice the digits.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["rounded_apart", "rounded_off_scale", "with_rounded_off"]


def rounded_off_scale(dtype: torch.dtype) -> float:
    """What `rounded_off` is kept times: in float16 it might be too small otherwise.

    As `rounded_off_scale` in csrc/output_row.h.
    """
    return 2048.0 if dtype == torch.float16 else 1.0


def with_rounded_off(output: Tensor, rounded_off: Tensor) -> Tensor:
    """The output before it was rounded, in 32 bits at least.

    Args:
        output: `(b, h, i, dv)`.
        rounded_off: the same, in its dtype; with a single axis where nothing was taken off.

    >>> exact = torch.tensor([[[[1.001, 2.003]]]])
    >>> with_rounded_off(*rounded_apart(exact, torch.float16)).sub(exact).abs().max() < 1e-6
    tensor(True)
    """
    if rounded_off.ndim == 1:
        return output if output.dtype == torch.float64 else output.float()
    return output.float() + rounded_off.float() / rounded_off_scale(output.dtype)


def rounded_apart(exact: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """An output in `dtype`, and what rounding took off: empty where that is nothing."""
    output = exact.to(dtype)
    if exact.dtype == dtype:
        return output, output.new_empty(0)
    return output, ((exact - output) * rounded_off_scale(dtype)).to(dtype)
