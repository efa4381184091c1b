"""Sizes of tiles and of launches: nothing here changes a result beyond rounding."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from .call_traits import CallTraits
from .table_window import TableWindow
from .tile_table import TILES

__all__ = [
    "BY_WARP",
    "NARROW",
    "SHORT",
    "TileShape",
    "TiledCall",
    "capability_of",
    "count_tiles",
    "kind_of",
    "kind_on",
    "multiplies_by_warp_group",
    "next_power_of_two",
    "processors",
    "program_memory",
    "split_count",
    "tile_shapes",
    "tile_shapes_on_cuda",
    "widest_of_three_products",
]


class TileShape(NamedTuple):
    """The tile of a kernel, and how Triton compiles it.

    Args:
        m: queries in a tile.
        n: keys in a tile, or offsets; divides `m`.
        warps: of a program.
        stages: of the compiler's pipeline.
        registers: of a thread, at most; 0: as many as the compiler takes.
    """

    m: int
    n: int
    warps: int
    stages: int
    registers: int = 0

    @property
    def of_short_loop(self) -> TileShape:
        """A tile of the same size for a loop of few turns, without a pipeline or a limit."""
        return self._replace(stages=1, registers=0)

    @property
    def options(self) -> dict[str, int]:
        """The compiler's, by Triton's names."""
        # Multiplied and added in one instruction, which from Triton 3.10 on is not the default.
        found = {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": True}
        return found | {"maxnreg": self.registers} if self.registers else found


@runtime_checkable
class TiledCall(Protocol):
    """What a call's tiles follow from, as `PreparedCall` has it."""

    q: Tensor
    seqlen_q: int
    traits: CallTraits

    @property
    def precision(self) -> str:
        """The precision of float32 matrix products."""
        ...

    @property
    def grid(self) -> object | None:
        """None for a sequence."""
        ...

    @property
    def tables(self) -> Mapping[str, object]:
        """By name, those that there are."""
        ...

    @property
    def table_window(self) -> TableWindow:
        """Their offsets."""
        ...

    @property
    def widths(self) -> tuple[int, int, int]:
        """The widths of `q`, of what is dotted with the table of keys, and of `v`."""
        ...


# In the interpreter: the smallest, so that short inputs have many tiles.
_SMALLEST = TileShape(32, 16, 4, 1)

# As in decoding: not more of a tile is empty than has to be.
_FEW_QUERIES = 32

_LEAST = 16  # tokens on a side of a tile, for products
_ALL_REGISTERS = 255  # of a thread
# What kinds of calls in 32 bits begin with.
_FLOAT32 = "float32", "tf32"

#: What the kinds of GPUs end with whose products are made by single warps.
BY_WARP = "by warp"
#: Rows of a table at most, if most keys are beyond it, on either side.
NARROW = 512
#: Numbers in a row of the table of keys below which it is short: to shear it is little work.
SHORT = 32


def tile_shapes(kernel: str, call: TiledCall) -> Sequence[TileShape]:
    """The tiles of a kernel for a call, the best first; others are smaller, or of fewer stages.

    Args:
        kernel: "forward", "dq", "dq, in two", "dkdv", "dpairs", "dtables" or "end_rows"; what
            follows from stored `dS` runs with the tile of dkdv.
        call: whose tensors the kernel gets.
    """
    if call.q.device.type == "cpu":
        return [_SMALLEST]
    return tile_shapes_on_cuda(kernel, call, _capability(call.q.device))


def tile_shapes_on_cuda(
    kernel: str, call: TiledCall, capability: tuple[int, int]
) -> Sequence[TileShape]:
    """The same for a GPU of some compute capability, wherever the tensors are."""
    if kernel == "end_rows":
        return [TileShape(64, 64, 4, 1)]
    row_tile_width = call.traits.row_tile_width if kernel in ("forward", "dq", "dkdv") else None
    has_few_queries = kernel == "forward" and call.seqlen_q <= _FEW_QUERIES
    kind = kind_of(call, capability)
    if kernel == "dq, in two":
        # The longer launch has of tables a number for each row. No sweep tries others for it.
        kernel, kind = "dq", re.sub("^(narrow table|tables)", "bias", kind)
    return _tile_shapes(kernel, kind, max(call.widths), row_tile_width, has_few_queries)


@lru_cache
def _tile_shapes(
    kernel: str, kind: str, width: int, row_tile_width: int | None, has_few_queries: bool
) -> tuple[TileShape, ...]:
    by_width = TILES[kind]["dkdv" if kernel == "dpairs" else kernel]
    shape = TileShape(*by_width[0 if width <= 64 else 1 if width <= 128 else 2])
    if row_tile_width is not None:
        shape = shape._replace(n=min(shape.n, row_tile_width))
    if has_few_queries and shape.m > _FEW_QUERIES:
        shape = TileShape(_FEW_QUERIES, min(shape.n, _FEW_QUERIES), 4, shape.stages)
    if not shape.registers and (width > 128 or kind.startswith(_FLOAT32)):
        # As many as there are, which the compiler takes at most anyhow. But where these are not
        # enough, it takes far fewer if it has no limit, and keeps next to nothing in them.
        shape = shape._replace(registers=_ALL_REGISTERS)
    shapes = [shape]
    while shape.stages > 1 or max(shape.m, shape.n) > _LEAST:
        if shape.stages > 1:
            shape = shape._replace(stages=shape.stages - 1)
        else:
            m, n = (max(size // 2, _LEAST) for size in (shape.m, shape.n))
            shape = TileShape(m, n, 4, 1)
        shapes.append(shape)
    return tuple(shapes)


def kind_of(call: TiledCall, capability: tuple[int, int]) -> str:
    """The kind of a call, as `tile_table.TILES` has it."""
    traits = call.traits
    if traits.num_axis_numbers and not traits.multiplies_axes and traits.row_tile_width is None:
        return kind_on(capability, "many coordinates")
    if call.q.element_size() == 4:
        return kind_on(capability, "tf32" if call.precision == "tf32" else "float32")
    kind = _kind_of_grid(call.traits) if call.grid is not None else _kind_of_sequence(call)
    return kind_on(capability, kind)


def kind_on(capability: tuple[int, int], kind: str) -> str:
    """What a kind is called on a GPU, given its name on an H100."""
    return kind if multiplies_by_warp_group(capability) else f"{kind} {BY_WARP}"


def multiplies_by_warp_group(capability: tuple[int, int]) -> bool:
    """Whether a GPU's products are made by four warps together, from shared memory.

    Those of the others are made by each warp, from its registers: before H100, and in cards for
    games after it (12.x).
    """
    return (9, 0) <= capability < (12, 0)


def widest_of_three_products(capability: tuple[int, int]) -> int:
    """Heads up to which float32 products in three of TF32 leave enough registers on a GPU."""
    return 128 if multiplies_by_warp_group(capability) else 64


def capability_of(device: torch.device) -> tuple[int, int]:
    """A GPU's; for the CPU, where the interpreter runs, an H100's."""
    return (9, 0) if device.type == "cpu" else _capability(device)


def _kind_of_grid(traits: CallTraits) -> str:
    # By what is multiplied or summed by coordinate: in all kernels, in those of backward, in dq.
    if traits.has_axis_weights:
        return "values of a grid"
    if traits.has_query_axis_logits:
        return "queries of a grid"
    if traits.row_tile_width is not None:
        return "rows of a grid"
    return "axes of a grid" if traits.has_key_axis_logits else "grid"


def _kind_of_sequence(call: TiledCall) -> str:
    tables = len(call.tables.keys() - {"bias"})  # the shear of each takes registers
    if not tables:
        return "bias" if call.tables else "plain"
    narrow = call.table_window.num_rows <= NARROW
    if tables > 1:
        return "tables" if narrow else "wide tables"
    if narrow:
        return "narrow table"
    return "short rows" if "keys" in call.tables and call.widths[1] < SHORT else "wide table"


def count_tiles(tokens: int, size: int) -> int:
    """How many tiles of some size hold `tokens`."""
    return -(-tokens // size)


def split_count(programs: int, items: int, device: torch.device) -> int:
    """In how many splits to sum `items`, of which each of `programs` has as many."""
    return max(1, min(items, 2 * processors(device) // max(programs, 1)))


def next_power_of_two(n: int) -> int:
    """The smallest power of two that is at least `n`."""
    return 1 << (n - 1).bit_length()


@lru_cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


@lru_cache
def program_memory(device: torch.device) -> int:
    """The bytes that a program may have beside its registers (shared memory), of a GPU."""
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin


@lru_cache
def processors(device: torch.device) -> int:
    """How many a GPU has (its SMs)."""
    if device.type != "cuda":
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count
