"""The errors that relpos raises, and the one place where shapes are checked and worded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

__all__ = ["BackendError", "ShapeError", "check_shape"]


class ShapeError(ValueError):
    """A tensor argument has the wrong shape, dtype or device."""


class BackendError(RuntimeError):
    """A backend that was asked for by name cannot run these inputs on this machine."""


def check_shape(
    function: str,
    argument: str,
    tensor: Tensor,
    axes: str,
    sizes: Mapping[str, int | Sequence[int]],
) -> None:
    """Raise unless `tensor` has the named axes, each of an allowed size.

    Args:
        function: the public function on whose behalf the check is made.
        argument: the argument's name as the user wrote it.
        tensor: the argument.
        axes: one name per axis, e.g. `"b g j d"`.
        sizes: for some axes the size that they must have, or several that they may have.

    Raises:
        ShapeError: with the rule and the shape that was given.
    """
    names = axes.split()
    fits = tensor.ndim == len(names) and all(
        size in ((allowed,) if isinstance(allowed, int) else allowed)
        for name, size in zip(names, tensor.shape, strict=True)
        if (allowed := sizes.get(name)) is not None
    )
    if fits:
        return
    rules = [
        f"{name}={allowed}" if isinstance(allowed, int) else f"{name} in {tuple(allowed)}"
        for name in names
        if (allowed := sizes.get(name)) is not None
    ]
    rule = f"({', '.join(names)})" + (f" with {', '.join(rules)}" if rules else "")
    raise ShapeError(f"{function}: {argument} must be {rule}, got {tuple(tensor.shape)}")
