"""Where `fully_shard` is to cut tables of relative positions."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

__all__ = ["table_placement"]


def table_placement(mesh: DeviceMesh) -> Callable[[nn.Parameter], Shard | None]:
    """A `shard_placement_fn` for `fully_shard(model, mesh=mesh, shard_placement_fn=...)`.

    `fully_shard` cuts every parameter along its first axis. A table of positions `(1, r, d)` then
    lies whole on one rank, with its gradient and what the optimizer keeps of it. Here such a
    parameter is cut along the longest axis that the ranks divide; others, and those without such
    an axis, as by default.

    Args:
        mesh: that `fully_shard` is given; of two dimensions (replicate, shard) the last one counts.

    Raises:
        TypeError: if `mesh` is no mesh.
    """
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"table_placement: mesh must be a DeviceMesh, got {type(mesh).__name__}")
    size = mesh.size(mesh.ndim - 1)

    def placement(parameter: nn.Parameter) -> Shard | None:
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        shape = local.shape
        if parameter.ndim < 2 or shape[0] >= size:
            return None
        taken = _taken_axes(parameter)
        axes = [n for n in range(1, len(shape)) if shape[n] % size == 0 and n not in taken]
        return Shard(max(axes, key=lambda n: shape[n])) if axes else None

    return placement


def _taken_axes(parameter: nn.Parameter) -> set[int]:
    """Axes along which another dimension of the mesh cuts it."""
    if not isinstance(parameter, DTensor):
        return set()
    return {each.dim for each in parameter.placements if isinstance(each, Shard)}
