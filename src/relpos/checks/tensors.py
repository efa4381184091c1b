"""Checks of tensors: that they are dense, of what shape and dtype, and on which device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..autocast import autocasts
from ..errors import ShapeError

__all__ = [
    "FLOATING",
    "check_device",
    "check_dtype",
    "check_floating",
    "check_integers",
    "check_like",
    "check_like_parameter",
    "check_queries",
    "check_shape",
    "check_tensor",
]

# What attention computes with.
FLOATING = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_ANY_SIZE: Mapping[str, int | tuple[int, ...]] = {}
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def check_tensor(function: str, argument: str, value: Any) -> None:
    """Raise unless `value` is a tensor whose numbers lie in memory by strides.

    Args:
        function: the public function or class on whose behalf the check is made.
        argument: the argument's name as the user wrote it.
        value: the argument.

    Raises:
        ShapeError: if it is sparse, nested, quantized, or of another library's layout.
        TypeError: if it is no tensor.

    >>> check_tensor("skew", "x", torch.eye(2).to_sparse())
    Traceback (most recent call last):
    relpos.errors.ShapeError: skew: x must be a dense tensor, got layout torch.sparse_coo
    """
    if not isinstance(value, Tensor):
        raise TypeError(f"{function}: {argument} must be a tensor, got {type(value).__name__}")
    if value.layout != torch.strided:
        kind = f"layout {value.layout}"
    elif value.is_nested:
        kind = "a nested one"
    elif value.is_quantized:
        kind = f"a quantized one of {value.dtype}"
    else:
        return
    raise ShapeError(f"{function}: {argument} must be a dense tensor, got {kind}")


def check_shape(
    function: str,
    argument: str,
    tensor: Tensor,
    axes: str,
    sizes: Mapping[str, int | tuple[int, ...]] = _ANY_SIZE,
) -> None:
    """Raise unless `tensor` has the named axes, each of an allowed size.

    Args:
        function: the public function on whose behalf the check is made.
        argument: the argument's name as the user wrote it.
        tensor: the argument.
        axes: one name per axis, e.g. `"b g j d"`, or its size, as in `"b i 2"`.
        sizes: for some axes the size that they must have, or several that they may have.

    Raises:
        ShapeError: with the rule and the shape that was given, or if `tensor` is not dense.
        TypeError: if it is no tensor.
    """
    check_tensor(function, argument, tensor)
    names = axes.split()
    if _fits(tensor.shape, names, sizes):
        return
    rules = [
        f"{name} in {allowed}" if isinstance(allowed, tuple) else f"{name}={allowed}"
        for name in names
        if (allowed := sizes.get(name)) is not None
    ]
    rule = f"({', '.join(names)})" + (f" with {', '.join(rules)}" if rules else "")
    raise ShapeError(f"{function}: {argument} must be {rule}, got {tuple(tensor.shape)}")


def _fits(
    shape: Sequence[int], names: Sequence[str], sizes: Mapping[str, int | tuple[int, ...]]
) -> bool:
    if len(shape) != len(names):
        return False
    for name, size in zip(names, shape, strict=True):
        allowed = sizes.get(name)
        if allowed is None:
            if name.isdigit() and size != int(name):
                return False
        # `==` one by one: sizes may be symbolic, which `in` and `isinstance(.., int)` mistake.
        elif isinstance(allowed, tuple):
            if not any(size == one for one in allowed):
                return False
        elif size != allowed:
            return False
    return True


def check_floating(
    function: str,
    argument: str,
    tensor: Tensor,
    axes: str | None = None,
    sizes: Mapping[str, int | tuple[int, ...]] = _ANY_SIZE,
) -> None:
    """Raise unless `tensor` holds real numbers of floating point, of 16 bits at least.

    Args:
        function: the public function or class on whose behalf the check is made.
        argument: the argument's name as the user wrote it.
        tensor: the argument.
        axes: as in `check_shape`; None means any.
        sizes: as in `check_shape`.

    Raises:
        ShapeError: if it has another dtype or shape, or is not dense.
        TypeError: if it is no tensor.
    """
    if axes is None:
        check_tensor(function, argument, tensor)
    else:
        check_shape(function, argument, tensor, axes, sizes)
    if tensor.dtype not in FLOATING:
        raise ShapeError(
            f"{function}: {argument} must be floating point of 16, 32 or 64 bits, "
            f"got {tensor.dtype}"
        )


def check_dtype(function: str, dtype: torch.dtype | None) -> None:
    """Raise unless parameters can be of `dtype`: floating point of 16, 32 or 64 bits.

    Args:
        function: the public class on whose behalf the check is made.
        dtype: the argument, whose name is `dtype`; None means torch's default.

    Raises:
        ValueError: otherwise.

    >>> check_dtype("Kerple", torch.complex64)
    Traceback (most recent call last):
    ValueError: Kerple: dtype must be floating point of 16, 32 or 64 bits, got torch.complex64
    """
    if dtype is not None and dtype not in FLOATING:
        raise ValueError(
            f"{function}: dtype must be floating point of 16, 32 or 64 bits, got {dtype}"
        )


def check_integers(function: str, argument: str, tensor: Tensor) -> None:
    """Raise unless `tensor` holds integers.

    Args:
        function: the public function or class on whose behalf the check is made.
        argument: the argument's name as the user wrote it.
        tensor: the argument.

    Raises:
        ShapeError: if it has another dtype or is not dense.
        TypeError: if it is no tensor.
    """
    check_tensor(function, argument, tensor)
    if tensor.dtype not in _INTEGERS:
        raise ShapeError(f"{function}: {argument} must be integers, got {tensor.dtype}")


def check_device(function: str, argument: str, tensor: Tensor, like: Tensor, whose: str) -> None:
    """Raise unless `tensor` is on the device of `like`.

    Args:
        function: the public function or class on whose behalf the check is made.
        argument: the argument's name as the user wrote it.
        tensor: the argument.
        like: the tensor with the wanted device.
        whose: what `like` is to the user, with its verb, e.g. `"q is"`.

    Raises:
        ShapeError: otherwise.
    """
    if tensor.device != like.device:
        raise ShapeError(
            f"{function}: {argument} must be on {like.device} as {whose}, got {tensor.device}"
        )


def check_like(function: str, argument: str, tensor: Tensor, like: Tensor, whose: str) -> None:
    """Raise unless `tensor` has the dtype and the device of `like`.

    Args:
        function: the public function or class on whose behalf the check is made.
        argument: the argument's name as the user wrote it.
        tensor: the argument.
        like: the tensor with the wanted dtype and device.
        whose: what `like` is to the user, with its verb, e.g. `"q is"`.

    Raises:
        ShapeError: otherwise.
    """
    if tensor.dtype != like.dtype or tensor.device != like.device:
        raise ShapeError(
            f"{function}: {argument} must be {like.dtype} on {like.device} as {whose}, "
            f"got {tensor.dtype} on {tensor.device}"
        )


def check_like_parameter(
    function: str,
    argument: str,
    tensor: Tensor,
    parameter: Tensor,
    axes: str | None = None,
    sizes: Mapping[str, int | tuple[int, ...]] = _ANY_SIZE,
) -> None:
    """Raise unless `tensor` has the device of `parameter` and, without autocast, its dtype.

    A parameter without a place (on meta) may get one when its module is called.

    Args:
        function: the class on whose behalf the check is made.
        argument: the argument's name as the user wrote it.
        tensor: the argument.
        parameter: what it is added to or multiplied by.
        axes: as in `check_shape`; None means any.
        sizes: as in `check_shape`.

    Raises:
        ShapeError: otherwise, or if `tensor` is not floating point.
        TypeError: if it is no tensor.
    """
    check_floating(function, argument, tensor, axes, sizes)
    if parameter.is_meta:
        parameter = torch.empty(0, dtype=parameter.dtype, device=tensor.device)
    if not autocasts(tensor) or tensor.device != parameter.device:
        check_like(function, argument, tensor, parameter, "the parameters are")


def check_queries(
    function: str,
    q: Tensor,
    heads: int | None,
    *,
    width: int | None = None,
    tokens: int | None = None,
) -> None:
    """Raise unless `q` is `(b, h, i, d)` and, where each head has a table, has as many heads.

    Args:
        function: the scheme on whose behalf the check is made.
        q: queries.
        heads: number of tables; 1 or None means one for all heads.
        width: d; None means any.
        tokens: i; None means any.

    Raises:
        ShapeError: otherwise.
        TypeError: if `q` is no tensor.
    """
    sizes = {"h": None if heads == 1 else heads, "i": tokens, "d": width}
    known = {axis: size for axis, size in sizes.items() if size is not None}
    check_floating(function, "q", q, "b h i d", known)
