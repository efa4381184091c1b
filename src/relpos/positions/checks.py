"""What several schemes ask of the tensors that they are called with."""

from __future__ import annotations

from torch import Tensor

from ..errors import ShapeError, check_shape
from ..ops.inputs import autocasts

__all__ = ["check_floating", "check_like", "check_queries"]


def check_queries(
    owner: str, q: Tensor, heads: int | None, *, width: int | None = None, tokens: int | None = None
) -> None:
    """Raise unless `q` is `(b, h, i, d)` and, where each head has a table, has as many heads.

    Args:
        owner: the scheme's class.
        q: queries.
        heads: number of tables; 1 or None means one for all heads.
        width: d; None means any.
        tokens: i; None means any.

    Raises:
        ShapeError: otherwise.
    """
    sizes = {"h": None if heads == 1 else heads, "i": tokens, "d": width}
    known = {axis: size for axis, size in sizes.items() if size is not None}
    check_shape(owner, "q", q, "b h i d", known)


def check_floating(owner: str, argument: str, tensor: Tensor) -> None:
    """Raise unless `tensor` holds real numbers of floating point.

    Args:
        owner: the scheme's class.
        argument: the argument's name.
        tensor: the argument.

    Raises:
        ShapeError: otherwise.
    """
    if not tensor.is_floating_point():
        raise ShapeError(f"{owner}: {argument} must be floating point, got {tensor.dtype}")


def check_like(owner: str, argument: str, tensor: Tensor, parameter: Tensor) -> None:
    """Raise unless `tensor` has the device of `parameter` and, without autocast, its dtype.

    Args:
        owner: the scheme's class.
        argument: the argument's name.
        tensor: the argument.
        parameter: what it meets.

    Raises:
        ShapeError: otherwise.
    """
    check_floating(owner, argument, tensor)
    same = tensor.dtype == parameter.dtype or autocasts(tensor)
    if not same or tensor.device != parameter.device:
        raise ShapeError(
            f"{owner}: {argument} must be {parameter.dtype} on {parameter.device} as the "
            f"parameters are, got {tensor.dtype} on {tensor.device}"
        )
