"""Sizes of tiles and of launches: nothing here changes a result beyond rounding."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from .table_window import TableWindow

__all__ = [
    "TileShape",
    "count_tiles",
    "next_power_of_two",
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
    def tables(self) -> Mapping[str, object]: ...

    @property
    def row_tile_width(self) -> int | None: ...

    @property
    def table_window(self) -> TableWindow: ...

    @property
    def widths(self) -> tuple[int, int, int]: ...


# In the interpreter: the smallest, so that short inputs have many tiles.
_SMALLEST = TileShape(32, 16, 4, 1)

# By the width of a head (up to 64, 128, 256). No GPU has timed them: among those tried, these make
# the shortest loops, without spilling registers in them where that can be had
# (`python -m scripts.kernel_facts`). With fewer than 16 queries for each warp some warps compute
# the same; in 16 bits and up to 64 that is so on grids alone.
_Tiles = dict[str, tuple[TileShape, TileShape, TileShape]]
_FLOAT32: _Tiles = {
    "forward": (TileShape(32, 32, 8, 1), TileShape(32, 16, 8, 1), TileShape(32, 16, 8, 1)),
    "dq": (TileShape(32, 32, 8, 1), TileShape(32, 16, 8, 1), TileShape(32, 16, 8, 1)),
    "dkdv": (TileShape(32, 32, 8, 1), TileShape(32, 32, 8, 1), TileShape(16, 16, 4, 1)),
    "dtables": (TileShape(32, 32, 8, 1), TileShape(32, 32, 8, 1), TileShape(16, 16, 4, 1)),
}
_PLAIN: _Tiles = {
    "forward": (TileShape(128, 64, 8, 2), TileShape(128, 64, 8, 2), TileShape(64, 32, 8, 2)),
    "dq": (TileShape(128, 64, 8, 2), TileShape(64, 64, 8, 2), TileShape(64, 32, 8, 1)),
    "dkdv": (TileShape(64, 64, 4, 2), TileShape(128, 64, 8, 1), TileShape(32, 32, 4, 1)),
    "dtables": (TileShape(64, 64, 4, 1), TileShape(64, 64, 8, 1), TileShape(32, 32, 4, 1)),
}
# The shear of each table of vectors takes registers.
_TABLES: _Tiles = {
    "forward": (TileShape(64, 64, 4, 2), TileShape(64, 32, 4, 2), TileShape(64, 32, 8, 2)),
    "dq": (TileShape(64, 32, 4, 2), TileShape(64, 32, 4, 2), TileShape(64, 32, 8, 1)),
    "dkdv": (TileShape(64, 64, 4, 2), TileShape(128, 64, 8, 1), TileShape(32, 32, 4, 1)),
    "dtables": (TileShape(64, 64, 4, 1), TileShape(64, 32, 4, 1), TileShape(32, 32, 4, 1)),
}
# Where most keys are beyond the table, on either side.
_FEW_ROWS = 512
_ONE_NARROW_TABLE = _TABLES | {
    "forward": (TileShape(128, 64, 8, 2), TileShape(64, 32, 4, 2), TileShape(64, 32, 8, 2)),
}
# The logits of both sides take so many registers that four warps would spill them.
_GRID = _PLAIN | {
    "dkdv": (TileShape(64, 64, 8, 2), TileShape(64, 64, 8, 1), TileShape(32, 32, 4, 1)),
}
# Without the H100's products of 64 rows at a time, whose operands need no registers.
_TABLES_BEFORE_H100 = _TABLES | {
    "forward": (TileShape(64, 32, 4, 2), TileShape(64, 32, 4, 2), TileShape(64, 32, 8, 2)),
    "dq": (TileShape(32, 32, 4, 2), TileShape(32, 32, 4, 2), TileShape(32, 32, 4, 1)),
    "dtables": (TileShape(64, 32, 4, 1), TileShape(64, 32, 4, 1), TileShape(32, 32, 4, 1)),
}


def tile_shapes(kernel: str, call: _Call) -> list[TileShape]:
    """The tiles of a kernel for a call, the best first; each of the others asks for less memory.

    Args:
        kernel: "forward", "dq", "dkdv", "dmask", "dtables" or "end_rows".
        call: whose tensors the kernel gets.
    """
    if call.q.device.type == "cpu":
        return [_SMALLEST]
    return tile_shapes_on_cuda(kernel, call, torch.cuda.get_device_capability(call.q.device))


def tile_shapes_on_cuda(kernel: str, call: _Call, capability: tuple[int, int]) -> list[TileShape]:
    """The same for a GPU of some compute capability, wherever the tensors are."""
    if kernel == "end_rows":
        return [TileShape(64, 64, 4, 1)]
    width = max(call.widths)
    by_width = _tiles(call, capability)["dkdv" if kernel == "dmask" else kernel]
    shape = by_width[0 if width <= 64 else 1 if width <= 128 else 2]
    if call.row_tile_width is not None and kernel in ("forward", "dq", "dkdv"):
        shape = shape._replace(n=min(shape.n, call.row_tile_width))
    shapes = [shape]
    while shape.stages > 1 or shape.n > 16:
        if shape.stages > 1:
            shape = shape._replace(stages=shape.stages - 1)
        else:
            shape = TileShape(shape.m // 2, shape.n // 2, 4, 1)
        shapes.append(shape)
    return shapes


def _tiles(call: _Call, capability: tuple[int, int]) -> _Tiles:
    if call.q.element_size() == 4:
        return _FLOAT32
    if call.grid is not None:
        return _GRID if call.row_tile_width is None else _PLAIN
    tables = len(call.tables.keys() - {"bias"})
    if not tables:
        return _PLAIN
    if capability < (9, 0):
        return _TABLES_BEFORE_H100
    few_rows = call.table_window.num_rows <= _FEW_ROWS
    return _ONE_NARROW_TABLE if tables == 1 and few_rows else _TABLES


def count_tiles(tokens: int, size: int) -> int:
    """How many tiles of some size hold `tokens`."""
    return -(-tokens // size)


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
