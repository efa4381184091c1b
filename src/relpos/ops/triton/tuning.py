"""Sizes of tiles and of launches: nothing here changes a result beyond rounding."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

__all__ = ["Shape", "parts_of", "program_count", "shapes_of", "shapes_on_cuda"]


class Shape(NamedTuple):
    """Of a kernel: `m` queries and `n` keys in a tile (`n` divides `m`), warps and stages."""

    m: int
    n: int
    warps: int
    stages: int


class _Sized(Protocol):
    q: Tensor
    p: Tensor
    v: Tensor


# In the interpreter: the smallest, so that short inputs have many tiles.
_SMALLEST = Shape(32, 16, 4, 1)

# By the width of a head (up to 64, 128, 256), for 16-bit and for 32-bit numbers. No GPU has timed
# them: among those tried, the compiler spills few registers for these.
_FORWARD = {
    16: (Shape(128, 64, 8, 2), Shape(128, 64, 8, 2), Shape(64, 32, 8, 2)),
    32: (Shape(32, 32, 8, 1), Shape(32, 16, 8, 1), Shape(32, 16, 8, 1)),
}
_BY_QUERY = {
    16: (Shape(128, 64, 8, 2), Shape(64, 64, 8, 2), Shape(64, 32, 8, 1)),
    32: (Shape(32, 32, 8, 1), Shape(32, 16, 8, 1), Shape(32, 16, 8, 1)),
}
_BY_KEY = {
    16: (Shape(64, 64, 8, 2), Shape(64, 64, 8, 1), Shape(32, 32, 4, 1)),
    32: (Shape(32, 32, 8, 1), Shape(32, 32, 8, 1), Shape(16, 16, 4, 1)),
}
_SHAPES = {
    "forward": _FORWARD,
    "by_query": _BY_QUERY,
    "by_key": _BY_KEY,
    "by_offset": _BY_KEY,
}


def shapes_of(kernel: str, call: _Sized) -> list[Shape]:
    """The tiles of a kernel for a call, the best first; each of the others asks for less memory."""
    if call.q.device.type == "cpu":
        return [_SMALLEST]
    return shapes_on_cuda(kernel, call)


def shapes_on_cuda(kernel: str, call: _Sized) -> list[Shape]:
    """The same for a GPU, wherever the tensors are."""
    if kernel == "ends":
        return [Shape(64, 64, 4, 1)]
    width = max(x.shape[3] for x in (call.q, call.p, call.v))
    by_width = _SHAPES[kernel][8 * call.q.element_size()]
    shape = by_width[0 if width <= 64 else 1 if width <= 128 else 2]
    shapes = [shape]
    while shape.stages > 1 or shape.n > 16:
        m, n, warps, stages = shape
        shape = Shape(m, n, warps, stages - 1) if stages > 1 else Shape(m // 2, n // 2, 4, 1)
        shapes.append(shape)
    return shapes


def program_count(tiles: int, device: torch.device, bounded: bool) -> int:
    """How many programs share `tiles`: one for each, or as many as a device holds if `bounded`."""
    return min(tiles, 2 * _processors(device)) if bounded else tiles


def parts_of(each: int, items: int, device: torch.device) -> int:
    """In how many parts to sum `items`, of which there are as many for each of `each` programs."""
    return max(1, min(items, 2 * _processors(device) // max(each, 1)))


@lru_cache
def _processors(device: torch.device) -> int:
    if device.type == "cpu":
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count
