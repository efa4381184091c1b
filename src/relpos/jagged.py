"""Jagged nested tensors as packed rows: their sequences one after another, each a document.

`torch.nested` (layout `torch.jagged`) holds sequences of different lengths without padding, as one
row of numbers and where each sequence begins. That row is what `documents` is for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from .checks import check_tensor
from .errors import ShapeError

__all__ = [
    "check_alike", "check_jagged", "check_only_jagged", "documents_of", "have_same_offsets",
    "is_jagged", "jagged_like", "row_of",
]  # fmt: skip


def is_jagged(x: object) -> bool:
    """Whether it is a nested tensor of sequences in a row."""
    return isinstance(x, Tensor) and x.is_nested and x.layout == torch.jagged


def check_jagged(function: str, argument: str, x: Tensor, axes: str, lengths: str) -> None:
    """Raise unless `x` is jagged along one of its axes.

    Args:
        function: the public function or class on whose behalf the check is made.
        argument: the argument's name as the user wrote it.
        x: the argument.
        axes: one name for each, e.g. `"b h i d"`.
        lengths: the name of that along which sequences have lengths of their own.

    Raises:
        ShapeError: with the rule and the shape that was given.
        TypeError: if it is no tensor.
    """
    if not is_jagged(x):
        check_tensor(function, argument, x)
    names = axes.split()
    axis = names.index(lengths)
    fits = is_jagged(x) and x.ndim == len(names)
    # While tracing any size may be a symbol.
    if fits and not torch.compiler.is_compiling():
        fits = isinstance(x.shape[axis], torch.SymInt)
    if not fits:
        shape = f"{'a nested one of ' if is_jagged(x) else ''}{tuple(x.shape)}"
        raise ShapeError(
            f"{function}: {argument} must be ({', '.join(names)}), nested, with sequences of their "
            f"own lengths {lengths}, got {shape}"
        )


def check_only_jagged(function: str, given: Mapping[str, Any]) -> None:
    """Raise a ValueError if something is given beside nested tensors that numbers a batch's tokens.

    Args:
        function: the public function or class on whose behalf the check is made.
        given: by the arguments' names; None for what is not given.
    """
    for name, x in given.items():
        if x is not None:
            raise ValueError(
                f"{function}: {name} must be None with nested tensors, whose sequences see "
                f"themselves alone, got {type(x).__name__}"
            )


def have_same_offsets(x: Tensor, other: Tensor, *, axis: int) -> bool:
    """Whether the sequences of both lie alike in their rows, as torch knows it.

    It compares no numbers: both are to be made with one tensor of offsets, as by arithmetic.

    Args:
        x: nested.
        other: likewise.
        axis: of both, along which sequences have lengths of their own.
    """
    if x.shape[axis] != other.shape[axis]:
        return False
    (begins, lengths), (others, _) = _offsets(x), _offsets(other)
    # Where there are lengths, torch knows the axis by these alone.
    return lengths is None or begins is others


def check_alike(
    function: str, argument: str, x: Tensor, of: str, other: Tensor, *, axis: int | None = None
) -> None:
    """Raise a ShapeError unless both have as many sequences, and with `axis` the same offsets.

    Args:
        function: the public function or class on whose behalf the check is made.
        argument: the argument's name as the user wrote it.
        x: the argument, nested.
        of: the name of the other argument.
        other: nested.
        axis: of both, along which sequences have lengths of their own.
    """
    if x.shape[0] != other.shape[0]:
        raise ShapeError(
            f"{function}: {argument} must have as many sequences as {of}, got {x.shape[0]} and "
            f"{other.shape[0]}"
        )
    if axis is not None and not have_same_offsets(x, other, axis=axis):
        raise ShapeError(
            f"{function}: {argument} must be made with {of}'s offsets (x.offsets()), got "
            f"{tuple(x.shape)} beside {tuple(other.shape)}"
        )


def row_of(x: Tensor, *, axis: int) -> Tensor:
    """All sequences one after another, as a batch of one; zeros where nobody's numbers are.

    Args:
        x: nested.
        axis: along which sequences have lengths of their own.
    """
    row = x.values().unsqueeze(0)
    if _offsets(x)[1] is None:
        return row
    nobodys = documents_of(x, axis=axis)[0] < 0
    return row.masked_fill(nobodys.view(-1, *[1] * (row.ndim - axis - 1)), 0)


def documents_of(x: Tensor, *, axis: int) -> Int64[Tensor, "1 j"]:
    """The number of the sequence that each position of the row belongs to, -1 for none.

    Args:
        x: nested.
        axis: along which sequences have lengths of their own.

    >>> x = torch.nested.nested_tensor([torch.zeros(2, 4), torch.zeros(3, 4)], layout=torch.jagged)
    >>> documents_of(x, axis=1)
    tensor([[0, 0, 1, 1, 1]])
    """
    begins, lengths = _offsets(x)
    at = torch.arange(x.values().shape[axis - 1], device=begins.device)
    number = torch.searchsorted(begins, at, right=True) - 1
    last = begins.shape[0] - 2
    is_inside = number <= last
    if lengths is not None:  # of a slice: there are positions between the sequences
        of_sequence = number.clamp(0, last)
        is_inside &= at - begins[of_sequence] < lengths[of_sequence]
    return number.where(is_inside, -1).unsqueeze(0)


def jagged_like(row: Tensor, x: Tensor, *, axis: int) -> Tensor:
    """The row's sequences as a nested tensor, with the lengths of those of `x`.

    Args:
        row: `(1, ...)`, as `row_of`.
        x: nested.
        axis: of the row and of the result, along which they have these lengths.
    """
    begins, lengths = _offsets(x)
    # In memory it comes first, as torch's own functions leave it: some take it to.
    values = row.squeeze(0).movedim(axis - 1, 0).contiguous()
    found = torch.nested.nested_tensor_from_jagged(
        values, begins, lengths, jagged_dim=1,
        # What torch knows of them already, and pads by.
        min_seqlen=getattr(x, "_maybe_min_seqlen", None),
        max_seqlen=getattr(x, "_maybe_max_seqlen", None),
    )  # fmt: skip
    return found if axis == 1 else found.transpose(1, axis)


def _offsets(x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Where each sequence begins, and how long it is if they do not follow each other at once."""
    nested: Any = x  # which has methods that a `Tensor` is not known to have
    return nested.offsets(), nested.lengths()
