"""Sizes of which `torch.jit.trace` makes constants: what was traced refuses all others.

A trace keeps the numbers that an operator is called with. Where they follow from a length, as a
table's first offset may, its results would be wrong at any other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .errors import ShapeError

__all__ = ["is_traced_size", "keep_size", "plain_size"]


@torch.library.custom_op("relpos::of_traced_size", mutates_args=())
def _of_traced_size(x: Tensor, axis: int, size: int) -> Tensor:
    if x.shape[axis] != size:
        raise ShapeError(
            f"torch.jit.trace: this trace is for {size} along axis {axis} of a tensor, as offsets "
            f"and grids in it are numbers, got {tuple(x.shape)}; torch.export and torch.compile "
            "serve all sizes"
        )
    return x.clone()


@_of_traced_size.register_fake
def _(x: Tensor, axis: int, size: int) -> Tensor:
    return torch.empty_like(x)


_of_traced_size.register_autograd(lambda _, gradient: (gradient, None, None))


def is_traced_size(number: object) -> bool:
    """Whether it is a size that `torch.jit.trace` follows: there it is a tensor."""
    return isinstance(number, Tensor)


def plain_size(x: Tensor, axis: int) -> int:
    """`x.shape[axis]`, a constant in a trace."""
    size = x.shape[axis]
    return int(size) if is_traced_size(size) else size


def keep_size(x: Tensor, axis: int) -> Tensor:
    """`x`; in a trace, what refuses another size along an axis.

    Args:
        x: any tensor.
        axis: of it.
    """
    if not torch.jit.is_tracing():  # pyright: ignore[reportPrivateImportUsage]
        return x
    return _of_traced_size(x, axis, plain_size(x, axis))
