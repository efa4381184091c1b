"""Sizes of which `torch.jit.trace` makes constants: a trace refuses others than it is for.

A trace keeps the numbers that an operator is called with. Where they follow from a length, as a
table's first offset or a grid may, its results would be wrong at any other.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.library import custom_op

from .errors import ShapeError

__all__ = ["is_jit_tracing", "keep_grid", "keep_lengths", "note_constant", "plain_size"]

_of_thread = threading.local()  # has the last trace in which a size became a constant


@custom_op(
    "relpos::of_traced_lengths",
    mutates_args=(),
    schema="(Tensor x, Tensor other, int length, int difference) -> Tensor",
)
def _of_traced_lengths(x: Tensor, other: Tensor, length: int, difference: int) -> Tensor:
    """A copy of `x (b, h, i, d)`, beside `other (b, g, j, d)`.

    Args:
        x: whose length must be `length`, unless that is below 0.
        other: which must be longer by `difference`.
        length: in tokens.
        difference: in tokens.
    """
    i, j = x.shape[2], other.shape[2]
    if j - i != difference or (length >= 0 and i != length):
        wanted = f"{length} queries and {length + difference} keys"
        if length < 0:
            more, fewer = ("keys", "queries") if difference >= 0 else ("queries", "keys")
            wanted = f"{abs(difference)} more {more} than {fewer}" if difference else "as many keys"
        raise ShapeError(
            f"torch.jit.trace: this trace is for {wanted}, as offsets or grids in it are numbers, "
            f"got {i} queries and {j} keys; torch.export and torch.compile serve all lengths"
        )
    return x.clone()


@_of_traced_lengths.register_fake
def _(x: Tensor, other: Tensor, length: int, difference: int) -> Tensor:
    return torch.empty_like(x)


_of_traced_lengths.register_autograd(lambda _, gradient: (gradient, None, None, None))


@custom_op(
    "relpos::of_traced_grid", mutates_args=(), schema="(Tensor x, int first, int[] grid) -> Tensor"
)
def _of_traced_grid(x: Tensor, first: int, grid: Sequence[int]) -> Tensor:
    """A copy of `x`, whose axes from `first` on must be as long as those of `grid`."""
    found = tuple(x.shape[first : first + len(grid)])
    if found != tuple(grid):
        raise ShapeError(
            f"torch.jit.trace: this trace is for maps of {tuple(grid)} tokens, as grids in it are "
            f"numbers, got {found}; torch.export and torch.compile serve all sizes"
        )
    return x.clone()


@_of_traced_grid.register_fake
def _(x: Tensor, first: int, grid: Sequence[int]) -> Tensor:
    return torch.empty_like(x)


_of_traced_grid.register_autograd(lambda _, gradient: (gradient, None, None))


def keep_grid(x: Tensor, first: int, axes: int) -> Tensor:
    """A map; in a trace, what refuses maps of another shape, whose tokens may be as many.

    Args:
        x: of any axes.
        first: the first one of the grid.
        axes: of the grid.
    """
    if not is_jit_tracing() or torch.onnx.is_in_onnx_export():
        return x
    return _of_traced_grid(x, first, [plain_size(x, first + axis) for axis in range(axes)])


def is_jit_tracing() -> bool:
    """Whether `torch.jit.trace` is at work."""
    return torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]


def note_constant(number: object) -> None:
    """Say that a number becomes a constant: of a size that is traced, which is a tensor there."""
    if isinstance(number, Tensor) and is_jit_tracing():
        _of_thread.trace_with_constants = torch._C._get_tracing_state()


def plain_size(x: Tensor, axis: int) -> int:
    """`x.shape[axis]`, a constant in a trace: for sizes that are the same for all lengths."""
    size = x.shape[axis]
    return int(size) if isinstance(size, Tensor) else size


def keep_lengths(q: Tensor, k: Tensor, *, has_grid: bool, has_offsets: bool) -> Tensor:
    """`q`; in a trace, what refuses lengths for which its constants are not.

    Where any size became a constant before, these are both lengths, and else their difference.

    Args:
        q: `(b, h, i, d)`.
        k: `(b, g, j, d)`.
        has_grid: whether they are tokens of a grid, whose sizes are constants.
        has_offsets: whether it matters where queries are among the keys, which is a constant.
    """
    # ONNX has no such operator; its old exporter, which traces, stops at others.
    if not is_jit_tracing() or torch.onnx.is_in_onnx_export():
        return q
    i, j = plain_size(q, 2), plain_size(k, 2)
    noted = getattr(_of_thread, "trace_with_constants", None)
    if has_grid or (noted is not None and noted is torch._C._get_tracing_state()):
        return _of_traced_lengths(q, k, i, j - i)
    return _of_traced_lengths(q, k, -1, j - i) if has_offsets else q
