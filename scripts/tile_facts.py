"""What the compiler makes of the Triton kernels with other tiles, without a GPU.

    python -m scripts.tile_facts                          # all that is tried: half an hour
    python -m scripts.tile_facts --architectures sm_80 --kinds "axes, 4 x 128" --dims 64

For a kernel that no GPU has timed, `tile_table.py` has the tile with the fewest cycles for a pair
of tokens (those of `kernel_facts.py`: a prediction), of those that leave a processor eight warps
and spill few registers within loops. With too many to keep, ptxas spills nearly all: a kernel of
32 or 40 registers and thousands of bytes then takes ten times as many cycles.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import triton

from benchmarks.files import RESULTS, save
from benchmarks.options import check_out
from relpos import Terms
from relpos.ops.triton.tuning import TileShape

from .compile_ahead import Compiled, compile_call, on_grid, sequence, table
from .kernel_facts import CASES, LENGTH, PROCESSORS, Processor, blocks, cycles_of
from .sass import disassemble, inner_loops, resources

__all__ = ["KINDS", "TILES", "Kind", "rows_of"]

GRID_TOKENS = 512
KERNELS = ("forward_kernel", "dq_kernel", "dkdv_kernel", "dtables_kernel", "stored_dq_kernel",
           "stored_dtables_kernel")  # fmt: skip
TILES = (
    (128, 64, 4, 3), (128, 64, 8, 2), (128, 32, 4, 2), (64, 64, 4, 2), (64, 64, 8, 2),
    (64, 32, 4, 2), (64, 16, 4, 2), (32, 32, 4, 2), (32, 32, 2, 2), (32, 16, 2, 2),
)  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """A kind of call.

    Args:
        terms: of queries.
        causal: whether it is.
        tokens: of the call.
        row: keys of a tile at most, where it is a row of the grid.
        only: architectures that it is tried for.
    """

    terms: Callable[[torch.Tensor], Any]
    causal: bool = False
    tokens: int = LENGTH
    row: int = 64
    only: tuple[str, ...] = tuple(PROCESSORS)


def _grid(shape: tuple[int, ...], *names: str, bias: bool = False, row: int = 64) -> Kind:
    """Tables by these names along each axis, and a joint bias."""
    return Kind(on_grid(shape, *names, bias=bias), tokens=GRID_TOKENS, row=row)


def _keys_and_queries(q: torch.Tensor) -> Terms:
    """As DeBERTa has them, for 64 tokens on either side."""
    width = q.shape[3]
    return Terms(keys=table(1, 64, 64, width), queries=table(1, 64, 64, width))


def _wide(q: torch.Tensor) -> Terms:
    """Keys, queries and values with a row for every offset."""
    length, width = q.shape[2] - 1, q.shape[3]
    return Terms(
        keys=table(1, length, length, width), queries=table(1, length, length, width),
        values=table(1, length, length, width),
    )  # fmt: skip


_BY_WARP = ("sm_80",)
#: Those of `kernel_facts` were timed on an H100 or an H200.
KINDS = {
    **{name: Kind(case.terms, case.causal, only=_BY_WARP) for name, case in CASES.items()},
    "keys and queries": Kind(_keys_and_queries, only=_BY_WARP),
    "wide tables": Kind(_wide, only=_BY_WARP),
    "joint bias": _grid((16, 32), bias=True),
    "axes, 4 x 128": _grid((4, 128), "keys"),
    "axes and joint bias": _grid((16, 32), "keys", bias=True),
    "axes with queries": _grid((16, 32), "keys", "queries"),
    "axes with values": _grid((16, 32), "keys", "values", row=32),
    "axes with all": _grid((16, 32), "keys", "queries", "values", bias=True),
}


def rows_of(architecture: str, kind: str, dim: int, tile: tuple[int, ...]) -> list[dict[str, Any]]:
    """A row for each kernel of a call with a tile, forward and backward, or what was wrong.

    Args:
        architecture: a key of `kernel_facts.PROCESSORS`.
        kind: a key of `KINDS`.
        dim: width of a head.
        tile: a `TileShape`, for all kernels.
    """
    chosen = KINDS[kind]
    shape = TileShape(*tile)._replace(n=min(tile[1], chosen.row))
    of_row = {"architecture": architecture, "kind": kind, "dim": dim, "tile": list(tile)}
    try:
        compiled = compile_call(
            architecture,
            lambda: sequence(dim, chosen.tokens, terms=chosen.terms, causal=chosen.causal),
            tiles=lambda kernel, shapes: shapes[0] if kernel == "end_rows" else shape,
        )
    except Exception as error:  # the compiler has many
        return [of_row | {"error": f"{type(error).__name__}: {error}"[:200]}]
    # A launch for each chunk of stored scores.
    once = {(each.name, *_walked(each)): each for each in compiled if each.name in KERNELS}
    return [of_row | _of_kernel(each, PROCESSORS[architecture]) for each in once.values()]


def _walked(compiled: Compiled) -> tuple[bool, bool]:
    """Whether a launch of dq goes through the ends of the tables, and through the band."""
    return compiled.constants.get("WALKS_ENDS", True), compiled.constants.get("WALKS_BAND", True)


def _of_kernel(compiled: Compiled, processor: Processor) -> dict[str, Any]:
    cubin, shape = compiled.binary.asm["cubin"], compiled.shape
    used, shared = resources(cubin), compiled.binary.metadata.shared
    loops = [loop for loop in inner_loops(disassemble(cubin)) if loop.tensor_flops()]
    part = {(True, False): ", ends", (False, True): ", band"}.get(_walked(compiled), "")
    return {
        "kernel": compiled.name.removesuffix("_kernel") + part,
        "shared": shared,
        **used,
        "blocks": blocks(processor, used["registers"], shared, shape.warps),
        "loops": [
            {
                "instructions": loop.counts()["instructions"],
                "local": loop.counts()["local"],
                "cycles of a pair": round(
                    max(cycles_of(loop, processor, shape.warps).values()) / (shape.m * shape.n), 3
                ),
            }
            for loop in loops
        ],
    }  # fmt: skip


def line_of(row: dict[str, Any]) -> str:
    """A row as it is printed."""
    begin = "{architecture} {kind:20} {dim:4} ".format(**row) + "x".join(map(str, row["tile"]))
    if "error" in row:
        return f"{begin} {row['error']}"
    loops = ", ".join(f"{x['cycles of a pair']} ({x['local']} local)" for x in row["loops"])
    return (
        begin
        + " {kernel:16} {registers:4} registers {spilled:5} spilled ".format(**row)
        + (f"{row['blocks']} blocks, cycles of a pair {loops}")
    )


def _rows(wanted: tuple[Any, ...]) -> list[dict[str, Any]]:
    architecture, kind, dim, *tiles = wanted
    return [row for tile in tiles or TILES for row in rows_of(architecture, kind, dim, tile)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--architectures", nargs="+", choices=PROCESSORS, default=list(PROCESSORS))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND",
                        help=f"these alone (all): {', '.join(KINDS)}")  # fmt: skip
    parser.add_argument("--dims", nargs="+", type=int, choices=(64, 128), default=[64, 128])
    named = {"x".join(map(str, tile)): tile for tile in TILES}
    parser.add_argument("--tiles", nargs="+", choices=named, default=list(named), metavar="TILE",
                        help=f"these alone (all): {', '.join(named)}")  # fmt: skip
    parser.add_argument("--out", type=Path, default=RESULTS / "tile_facts.json")
    options = parser.parse_args()
    check_out(parser, options.out)
    result: dict[str, Any] = {"rows": []}
    if options.out.exists():
        result = json.loads(options.out.read_text())
    result["versions"] = {"torch": torch.__version__, "triton": triton.__version__}
    tiles = [named[name] for name in options.tiles]
    names = ("architecture", "kind", "dim", "tile")
    wanted = [
        (architecture, kind, dim, *tiles)
        for architecture in options.architectures
        for dim in options.dims
        for kind in options.kinds
        if architecture in KINDS[kind].only
    ]
    # A process for each: what compiles for a GPU that is not there is of no use afterwards.
    with get_context("spawn").Pool(maxtasksperchild=1) as pool:
        for rows in pool.imap(_rows, wanted):
            again = {tuple(map(str, (row[name] for name in names))) for row in rows}
            others = [
                row
                for row in result["rows"]
                if tuple(map(str, (row[name] for name in names))) not in again
            ]
            result["rows"] = others + rows
            save(options.out, result)
            print("\n".join(map(line_of, rows)), flush=True)


if __name__ == "__main__":
    main()
