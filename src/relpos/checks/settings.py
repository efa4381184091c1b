"""Checks of arguments that are plain numbers: counts, sizes, scales, probabilities."""

from __future__ import annotations

import operator
from math import inf
from numbers import Real
from typing import Any

import torch

__all__ = ["check_count", "check_probability", "check_scale", "check_sizes"]

# The sum of a few sizes and offsets is to fit 64 bits.
_LARGEST = 1 << 60


def check_count(function: str, argument: str, value: Any, *, least: int | None = 1) -> int:
    """`value` as an int, if it is an integer (NumPy's too, but no bool) of at least `least`.

    Args:
        function: the public function or class on whose behalf the check is made.
        argument: the argument's name as the user wrote it.
        value: the argument.
        least: the smallest allowed number; None means any.

    Raises:
        ValueError: otherwise.

    >>> check_count("Shaw", "heads", 4)
    4
    """
    rule = "an integer" + ("" if least is None else f" >= {least}")
    if not isinstance(value, bool):
        try:
            # A length may be a symbol of `torch.compile` or of an export, of which `index` would
            # make a constant.
            number: Any = value if isinstance(value, int | torch.SymInt) else operator.index(value)
        except TypeError:
            number = None
        if number is not None and (least is None or number >= least) and abs(number) < _LARGEST:
            return number
    raise ValueError(f"{function}: {argument} must be {rule}, got {value!r}")


def check_sizes(
    function: str, argument: str, sizes: tuple[int, ...], axes: int | None = None
) -> tuple[int, ...]:
    """`sizes` as a tuple of integers of at least 1.

    Args:
        function: the public function or class on whose behalf the check is made.
        argument: the argument's name as the user wrote it.
        sizes: one per axis.
        axes: how many there must be; None means any number.

    Raises:
        ValueError: otherwise.

    >>> check_sizes("Grid", "shape", [5, 7])
    (5, 7)
    """
    several = isinstance(sizes, tuple | list) and len(sizes) > 0
    if not several or (axes is not None and len(sizes) != axes):
        rule = "one size per axis" + ("" if axes is None else f", {axes} in all")
        raise ValueError(f"{function}: {argument} must be {rule}, got {sizes!r}")
    return tuple(check_count(function, argument, size) for size in sizes)


def check_scale(function: str, scale: Any, *, positive: bool = True) -> float | None:
    """`scale` as a float, if it is a finite number (NumPy's too, but no bool), or None.

    Args:
        function: the public function or class on whose behalf the check is made.
        scale: the argument, whose name is `scale`.
        positive: whether it must be more than 0, as what one divides by.

    Raises:
        ValueError: otherwise.

    >>> check_scale("MultiheadAttention", 1)
    1.0
    """
    if scale is None:
        return None
    if isinstance(scale, float | Real | torch.SymFloat) and not isinstance(scale, bool):
        # Not `float` nor `isfinite`: a scale may be a symbol of `torch.compile`.
        number: Any = scale if isinstance(scale, float | torch.SymFloat) else float(scale)
        if abs(number) < inf and (number > 0 or not positive):
            return number
    rule = "a positive number" if positive else "a finite number or None"
    raise ValueError(f"{function}: scale must be {rule}, got {scale!r}")


def check_probability(function: str, argument: str, value: Any) -> float:
    """`value`, if it is a number in `0 <= value < 1`, as the probability of dropout must be.

    Args:
        function: the public function or class on whose behalf the check is made.
        argument: the argument's name as the user wrote it.
        value: the argument.

    Raises:
        ValueError: otherwise.

    >>> check_probability("attention", "dropout", 0.1)
    0.1
    """
    # `float` besides `Real`, which a symbol of `torch.compile` is not.
    number: Any = value if isinstance(value, float | int | Real) else inf
    if not 0 <= number < 1:
        raise ValueError(f"{function}: {argument} must be in 0 <= {argument} < 1, got {value!r}")
    return number
