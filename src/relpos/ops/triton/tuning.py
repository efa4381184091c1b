"""Sizes of tiles and of launches: nothing here changes a result beyond rounding."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

__all__ = [
    "TileShape",
    "next_power_of_two",
    "program_count",
    "split_count",
    "tile_shapes",
    "tile_shapes_on_cuda",
]


class TileShape(NamedTuple):
    """The tile of a kernel, and how Triton compiles it.

    Args:
        m: queries in a tile.
        n: keys in a tile, or offsets; divides `m`.
        warps: of a program.
        stages: of the compiler's pipeline.
    """

    m: int
    n: int
    warps: int
    stages: int


@runtime_checkable
class _Call(Protocol):
    q: Tensor

    @property
    def grid(self) -> object | None: ...

    @property
    def widths(self) -> tuple[int, int, int]: ...


# In the interpreter: the smallest, so that short inputs have many tiles.
_SMALLEST = TileShape(32, 16, 4, 1)

# By the width of a head (up to 64, 128, 256), for 16-bit and for 32-bit numbers. No GPU has timed
# them: among those tried, the compiler spills few registers for these. With fewer than 16 queries
# for each warp some warps compute the same, as `python -m scripts.kernel_facts` shows; in 16 bits
# and up to 64 that is so on grids alone.
_FORWARD = {
    16: (TileShape(128, 64, 8, 2), TileShape(128, 64, 8, 2), TileShape(64, 32, 8, 2)),
    32: (TileShape(32, 32, 8, 1), TileShape(32, 16, 8, 1), TileShape(32, 16, 8, 1)),
}
_DQ = {
    16: (TileShape(128, 64, 8, 2), TileShape(64, 64, 8, 2), TileShape(64, 32, 8, 1)),
    32: (TileShape(32, 32, 8, 1), TileShape(32, 16, 8, 1), TileShape(32, 16, 8, 1)),
}
_DKDV = {
    16: (TileShape(64, 64, 4, 2), TileShape(64, 64, 8, 1), TileShape(32, 32, 4, 1)),
    32: (TileShape(32, 32, 8, 1), TileShape(32, 32, 8, 1), TileShape(16, 16, 4, 1)),
}
_DTABLES = _DKDV | {16: (TileShape(64, 64, 4, 1), TileShape(64, 64, 8, 1), TileShape(32, 32, 4, 1))}
# On a grid the logits of both sides take so many registers that four warps would spill them.
_DKDV_ON_GRIDS = _DKDV | {16: (TileShape(64, 64, 8, 2), *_DKDV[16][1:])}
_TILE_SHAPES = {"forward": _FORWARD, "dq": _DQ, "dkdv": _DKDV, "dmask": _DKDV, "dtables": _DTABLES}
_ON_GRIDS = _TILE_SHAPES | {"dkdv": _DKDV_ON_GRIDS, "dmask": _DKDV_ON_GRIDS}


def tile_shapes(kernel: str, call: _Call) -> list[TileShape]:
    """The tiles of a kernel for a call, the best first; each of the others asks for less memory.

    Args:
        kernel: "forward", "dq", "dkdv", "dmask", "dtables" or "end_rows".
        call: whose tensors the kernel gets.
    """
    if call.q.device.type == "cpu":
        return [_SMALLEST]
    return tile_shapes_on_cuda(kernel, call)


def tile_shapes_on_cuda(kernel: str, call: _Call) -> list[TileShape]:
    """The same for a GPU, wherever the tensors are."""
    if kernel == "end_rows":
        return [TileShape(64, 64, 4, 1)]
    width = max(call.widths)
    by_dtype = (_TILE_SHAPES if call.grid is None else _ON_GRIDS)[kernel]
    by_width = by_dtype[8 * call.q.element_size()]
    shape = by_width[0 if width <= 64 else 1 if width <= 128 else 2]
    shapes = [shape]
    while shape.stages > 1 or shape.n > 16:
        if shape.stages > 1:
            shape = shape._replace(stages=shape.stages - 1)
        else:
            shape = TileShape(shape.m // 2, shape.n // 2, 4, 1)
        shapes.append(shape)
    return shapes


def program_count(tiles: int, device: torch.device, *, has_buffers: bool) -> int:
    """How many programs share `tiles`: one for each, or as many as a device holds.

    The latter where programs have offset buffers, so that memory is theirs and not the tiles'.
    """
    return min(tiles, 2 * _processors(device)) if has_buffers else tiles


def split_count(programs: int, items: int, device: torch.device) -> int:
    """In how many splits to sum `items`, of which each of `programs` has as many."""
    return max(1, min(items, 2 * _processors(device) // max(programs, 1)))


def next_power_of_two(n: int) -> int:
    """The smallest power of two that is at least `n`."""
    return 1 << (n - 1).bit_length()


@lru_cache
def _processors(device: torch.device) -> int:
    if device.type == "cpu":
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count
