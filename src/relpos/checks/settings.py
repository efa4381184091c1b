"""Checks of arguments that are plain numbers: counts, sizes, scales, probabilities."""

from __future__ import annotations

import operator
import reprlib
from math import inf
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from ..traced_sizes import note_constant

__all__ = [
    "check_count",
    "check_flag",
    "check_number",
    "check_probability",
    "check_scale",
    "check_sizes",
    "check_softcap",
    "one_line",
]

# The sum of a few sizes and offsets is to fit 64 bits.
_LARGEST = 1 << 60
# Far from where float32 makes 0 or infinity of c, or of a score divided by it.
_CAPS = (1e-20, 1e20)


def one_line(value: Any) -> str:
    """A wrong argument as errors show it: on one line, however large it is.

    Args:
        value: the argument.

    >>> one_line("no"), one_line([1] * 99), one_line(torch.zeros(99))
    ("'no'", '[1, 1, 1, 1, 1, 1, ...]', 'Tensor')
    """
    if isinstance(value, Tensor):
        return type(value).__name__
    if isinstance(value, int) and abs(value) >= 1 << 128:  # Python may refuse to write it
        return f"an integer of {value.bit_length()} bits"
    return " ".join(reprlib.repr(value).split())


def check_count(function: str, argument: str, value: Any, *, least: int | None = 1) -> int:
    """`value` as an int, if it is an integer (NumPy's too, but no bool) of at least `least`.

    Args:
        function: the public function or class on whose behalf the check is made.
        argument: the argument's name as the user wrote it.
        value: the argument.
        least: the smallest allowed number; None means any.

    Raises:
        ValueError: otherwise, or if it is 2**60 or more in size.

    >>> check_count("Shaw", "heads", 4)
    4
    """
    rule = "an integer" + ("" if least is None else f" >= {least}")
    if not isinstance(value, bool):
        try:
            # A length may be a symbol of `torch.compile` or of an export, of which `index` would
            # make a constant.
            note_constant(value)
            number: Any = value if isinstance(value, int | torch.SymInt) else operator.index(value)
        except (TypeError, RuntimeError):  # the latter of a tensor that holds no number
            number = None
        if number is not None and (least is None or number >= least):
            # A symbol is not asked: the answer would become a condition of the program.
            if isinstance(value, torch.SymInt) or abs(number) < _LARGEST:
                return number
            rule += " and less than 2**60 in size"
    raise ValueError(f"{function}: {argument} must be {rule}, got {one_line(value)}")


def check_flag(function: str, argument: str, value: Any) -> None:
    """Raise unless `value` is a bool.

    Args:
        function: the public function or class on whose behalf the check is made.
        argument: the argument's name as the user wrote it.
        value: the argument.

    Raises:
        TypeError: otherwise.

    >>> check_flag("attention", "causal", 1)
    Traceback (most recent call last):
    TypeError: attention: causal must be True or False, got 1
    """
    if not isinstance(value, bool):
        raise TypeError(f"{function}: {argument} must be True or False, got {one_line(value)}")


def check_flags(function: str, **flags: Any) -> None:
    """Raise unless each is a bool, as `check_flag` does.

    Args:
        function: as there.
        **flags: by the arguments' names.
    """
    for argument, value in flags.items():
        check_flag(function, argument, value)


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
        raise ValueError(f"{function}: {argument} must be {rule}, got {one_line(sizes)}")
    return tuple(check_count(function, argument, size) for size in sizes)


def check_number(function: str, argument: str, value: Any) -> float:
    """`value` as a float, if it is a number (NumPy's too, but no bool), infinite or not.

    Args:
        function: the public function or class on whose behalf the check is made.
        argument: the argument's name as the user wrote it.
        value: the argument.

    Raises:
        TypeError: otherwise.

    >>> check_number("skew", "fill", -9)
    -9.0
    """
    number = _as_float(value)
    if number is None:
        raise TypeError(f"{function}: {argument} must be a number, got {one_line(value)}")
    return number


def check_scale(
    function: str, scale: Any, *, positive: bool = True, argument: str = "scale"
) -> float | None:
    """`scale` as a float, if it is a finite number (NumPy's too, but no bool), or None.

    Args:
        function: the public function or class on whose behalf the check is made.
        scale: the argument.
        positive: whether it must be more than 0, as what one divides by.
        argument: its name as the user wrote it.

    Raises:
        ValueError: otherwise.

    >>> check_scale("MultiheadAttention", 1)
    1.0
    """
    if scale is None:
        return None
    number = _as_float(scale)
    # Not `isfinite`: it may be a symbol of `torch.compile`.
    if number is not None and abs(number) < inf and (number > 0 or not positive):
        return number
    rule = "a positive number" if positive else "a finite number or None"
    raise ValueError(f"{function}: {argument} must be {rule}, got {one_line(scale)}")


def check_softcap(function: str, softcap: Any) -> float | None:
    """`softcap` as a float, if it is a number with which float32 can compute a cap, or None.

    Args:
        function: the public function or class on whose behalf the check is made.
        softcap: the argument, whose name is `softcap`.

    Raises:
        ValueError: otherwise.

    >>> check_softcap("attention", 30)
    30.0
    """
    if softcap is None:
        return None
    number, (least, most) = _as_float(softcap), _CAPS
    if number is not None and least <= number <= most:
        return number
    raise ValueError(
        f"{function}: softcap must be a positive number in {least}..{most}, or None for no cap, "
        f"got {one_line(softcap)}"
    )


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
        raise ValueError(
            f"{function}: {argument} must be in 0 <= {argument} < 1, got {one_line(value)}"
        )
    return number


def _as_float(value: Any) -> Any:
    """`value` as a float, or None if it is no number or too large an integer."""
    if isinstance(value, bool) or not isinstance(value, float | Real | torch.SymFloat):
        return None
    # Not always `float`: it may be a symbol of `torch.compile`.
    if isinstance(value, float | torch.SymFloat):
        return value
    try:
        return float(value)
    except OverflowError:
        return None
