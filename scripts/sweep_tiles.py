"""Time the Triton kernels with other tiles on a GPU, and write the best ones into the table.

    python -m scripts.sweep_tiles                       # times, into benchmarks/results/tiles.json
    python -m scripts.sweep_tiles --minutes 3 --cases "Shaw keys" --dims 64
    python -m scripts.sweep_tiles --usual               # the tiles of the table alone
    python -m scripts.sweep_tiles --write               # from that file into tile_table.py

Every kernel of a call, forward and backward, is timed by itself; but where `dS` is stored, what
follows from it counts as dkdv, whose tile it has. All tiles are compiled first, in
as many processes as there are cores, in half of the time at most. What is in the file is not timed
again, so that a run that was stopped goes on. In Triton's interpreter (TRITON_INTERPRET=1) it runs
too, at a size of no meaning.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from textwrap import wrap
from typing import Any

import torch
from torch import Tensor
from triton import OutOfResources

from benchmarks.files import RESULTS, save
from benchmarks.options import check_out
from relpos import attention
from relpos.ops.triton import tile_table
from relpos.ops.triton.recorded import without_records
from relpos.ops.triton.tile_table import TILES
from relpos.ops.triton.tuning import TileShape, kind_on, multiplies_by_warp_group

from .kernel_facts import CASES

__all__ = ["best_tiles", "candidates", "measure", "passes", "table_text", "updated_table"]

# What is replaced in them, no type knows.
launch: Any = importlib.import_module("relpos.ops.triton.launch")
backward: Any = importlib.import_module("relpos.ops.triton.backward")

CUDA = torch.cuda.is_available()
BATCH, HEADS, LENGTH = (4, 16, 4096) if CUDA else (1, 1, 64)
REPEATS = 5 if CUDA else 1
_AHEAD = 400_000  # cycles that the GPU waits, while Python comes to the launch
TABLE = Path(tile_table.__file__)
H100 = (9, 0)  # its compute capability

# Kinds of calls in `tile_table.TILES`, each with the case that stands for it; without what they end
# with for a GPU of the other sort.
KINDS = {
    "plain": "plain",
    "bias": "T5 bias",
    "narrow table": "Shaw keys",
    "wide table": "Huang, causal",
    "short rows": "Inkling logits, causal",
    "tables": "Shaw keys and values",
    "rows of a grid": "grid 64 x 64",
}
# Kernels that cases do not run: those of stored `dS` have the tile of dkdv and count as that, and a
# bias's gradient is summed by dq.
WITHOUT = {"Huang, causal": ("dq", "dtables"), "T5 bias": ("dtables",)}
# Kernels with a tile of their own, which is not tried here.
OTHERS = ("axis_", "bias_rows_")
# Tried for heads up to 64 wide, and for wider ones: `TileShape`s, of which some limit the registers
# so that more programs share a processor.
CANDIDATES = {
    "forward": (
        (
            (128, 64, 8, 3), (128, 64, 8, 3, 128), (64, 64, 4, 3), (64, 64, 4, 3, 168),
            (64, 64, 4, 3, 128), (128, 64, 4, 3), (64, 32, 4, 3, 168), (64, 64, 4, 2),
        ),
        (
            (128, 64, 8, 2), (128, 64, 8, 3), (64, 64, 4, 3), (64, 64, 4, 2), (64, 32, 4, 3),
            (64, 32, 4, 2, 168), (128, 32, 8, 3), (128, 64, 8, 2, 128),
        ),
    ),
    "dq": (
        (
            (128, 64, 8, 3), (128, 64, 8, 3, 128), (64, 64, 4, 3), (64, 64, 4, 3, 168),
            (64, 64, 4, 2), (64, 32, 4, 3), (64, 32, 4, 3, 168), (64, 32, 4, 3, 128),
        ),
        (
            (64, 64, 4, 3), (64, 64, 4, 2), (128, 64, 8, 2), (64, 32, 4, 3), (64, 32, 4, 2),
            (64, 64, 8, 2), (64, 32, 4, 2, 168), (32, 32, 4, 2),
        ),
    ),
    "dkdv": (
        (
            (64, 64, 4, 3), (64, 64, 4, 2, 168), (64, 64, 4, 2), (64, 64, 4, 3, 168),
            (64, 64, 4, 1, 168), (64, 32, 4, 3, 168), (128, 64, 4, 2), (128, 64, 8, 2),
        ),
        (
            (64, 64, 8, 2), (64, 64, 8, 1), (128, 64, 8, 2), (128, 64, 8, 1), (64, 64, 4, 2),
            (64, 32, 4, 2), (64, 32, 4, 3), (64, 64, 8, 3),
        ),
    ),
    "dtables": (
        (
            (64, 64, 4, 1), (64, 64, 4, 2), (64, 32, 4, 2), (64, 32, 4, 3), (64, 64, 4, 1, 168),
            (64, 32, 4, 2, 168), (64, 32, 4, 1), (32, 32, 4, 2),
        ),
        (
            (64, 64, 4, 1), (64, 32, 4, 2), (64, 32, 4, 1), (64, 64, 8, 1), (64, 64, 8, 2),
            (32, 32, 4, 2), (64, 64, 4, 2), (64, 32, 8, 2),
        ),
    ),
}  # fmt: skip
# The same where products are made by warp: fewer keys, so that registers last, and two warps.
CANDIDATES_BY_WARP = {
    "forward": (
        (
            (128, 64, 4, 3), (128, 32, 4, 2), (128, 64, 8, 2), (64, 64, 4, 2), (64, 32, 4, 2),
            (32, 32, 2, 2),
        ),
        (
            (128, 64, 8, 2), (128, 32, 4, 2), (64, 64, 4, 2), (64, 32, 4, 2), (32, 32, 4, 2),
            (32, 32, 2, 2),
        ),
    ),
    "dq": (
        (
            (128, 32, 4, 2), (128, 64, 8, 2), (64, 64, 4, 2), (64, 32, 4, 2), (32, 32, 4, 2),
            (32, 32, 2, 2),
        ),
        (
            (64, 64, 4, 2), (64, 32, 4, 2), (32, 32, 4, 2), (32, 32, 2, 2), (128, 64, 8, 2),
            (32, 16, 2, 2),
        ),
    ),
    "dkdv": (
        (
            (64, 64, 4, 2), (64, 32, 4, 2), (32, 32, 4, 2), (32, 32, 2, 2), (128, 64, 8, 2),
            (128, 64, 4, 3),
        ),
        (
            (64, 64, 4, 2), (64, 32, 4, 2), (32, 32, 4, 2), (32, 32, 2, 2), (32, 32, 4, 1),
            (32, 16, 2, 2),
        ),
    ),
    "dtables": (
        (
            (64, 64, 4, 2), (64, 64, 4, 1), (64, 32, 4, 2), (32, 32, 4, 2), (32, 32, 2, 2),
            (64, 32, 4, 1),
        ),
        (
            (64, 64, 4, 1), (64, 32, 4, 2), (64, 32, 4, 1), (32, 32, 4, 2), (32, 32, 2, 2),
            (32, 16, 2, 2),
        ),
    ),
}  # fmt: skip
WIDTHS = (64, 128, 256)
MORE = 1.01  # times as long: below that two times are one


def candidates(case: str, kernel: str, dim: int, capability: tuple[int, int]) -> list[TileShape]:
    """The tiles that a kernel of a case can have, with heads of some width, on some GPU."""
    if not CUDA:
        return [TileShape(32, 16, 4, 1), TileShape(16, 16, 4, 1)]
    of_kernels = CANDIDATES if multiplies_by_warp_group(capability) else CANDIDATES_BY_WARP
    shapes = [TileShape(*tile) for tile in of_kernels[kernel][dim > 64]]
    if case == KINDS["rows of a grid"]:
        return [shape for shape in shapes if shape.n == 64]  # a row of the grid is a tile
    if case in (KINDS["plain"], KINDS["bias"]):
        return shapes
    return [shape for shape in shapes if shape.n <= 64]  # a wider shear has no registers


def passes(
    case: str, dim: int, capability: tuple[int, int] = H100
) -> Iterator[dict[str, TileShape]]:
    """Tiles for all kernels at once, until each kernel has had all of its own."""
    kernels = [kernel for kernel in CANDIDATES if kernel not in WITHOUT.get(case, ())]
    of_kernels = {kernel: candidates(case, kernel, dim, capability) for kernel in kernels}
    for number in range(max(map(len, of_kernels.values()))):
        yield {kernel: shapes[number % len(shapes)] for kernel, shapes in of_kernels.items()}


def leaves(case: str, dim: int) -> tuple[list[Tensor], Any]:
    """Queries, keys and values of a case, and its terms; all want a gradient."""
    dtype, device = (torch.bfloat16, "cuda") if CUDA else (torch.float32, "cpu")
    draw = torch.Generator().manual_seed(0)

    def on_device(x: Tensor) -> Tensor:
        return x.detach().to(device, dtype).requires_grad_()

    qkv = [on_device(torch.randn(BATCH, HEADS, LENGTH, dim, generator=draw)) for _ in range(3)]
    return qkv, CASES[case].terms(qkv[0].cpu()).map(on_device)


def measure(case: str, dim: int, tiles: dict[str, TileShape], repeats: int) -> list[dict[str, Any]]:
    """A row for each kernel that a call runs: the median of its seconds, or why it did not run.

    Launches of one call with the tiles of the same kernel are added up.
    """
    (q, k, v), terms = leaves(case, dim)
    found: defaultdict[str, list[float]] = defaultdict(list)
    of_call: defaultdict[str, float] = defaultdict(float)
    errors: dict[str, str] = {}
    ran_with: dict[str, TileShape] = {}
    running = ""

    def shapes_of(kernel: str, call: Any) -> list[TileShape]:
        nonlocal running
        running = kernel.removesuffix(", in two")
        wanted = [tiles[running]] if running in tiles else []
        return [*wanted, *usual_shapes(kernel, call)]

    def run_timed(*arguments: Any, shape: TileShape, **constants: Any) -> None:
        if arguments[0].__name__.startswith(OTHERS):
            run_programs(*arguments, shape=shape, **constants)
            return
        first = ran_with.setdefault(running, shape)
        if CUDA:
            torch.cuda._sleep(_AHEAD)
        start = now()
        try:
            run_programs(*arguments, shape=shape, **constants)
        except OutOfResources as error:
            errors.setdefault(running, str(error))
            raise
        if shape == first:
            of_call[running] += seconds_between(start, now())

    usual_shapes, run_programs = launch.tile_shapes, launch.run_programs
    launch.tile_shapes, launch.run_programs = shapes_of, run_timed
    # The table's tiles of dq are those of one launch, but of a bias those of the longer one of two
    # (`tuning.py`).
    keys_of_two = backward._KEYS_OF_TWO_LAUNCHES
    if case != KINDS["bias"]:
        backward._KEYS_OF_TWO_LAUNCHES = 1 << 62
    try:
        with without_records():
            for _ in range(repeats + 1):
                output = attention(q, k, v, terms, causal=CASES[case].causal, backend="triton")
                output.backward(torch.ones_like(output))
                for kernel, seconds in of_call.items():
                    found[kernel].append(seconds)
                of_call.clear()
    finally:
        launch.tile_shapes, launch.run_programs = usual_shapes, run_programs
        backward._KEYS_OF_TWO_LAUNCHES = keys_of_two
    ran = {kernel: {"us": 1e6 * median(x[1:] or x)} for kernel, x in found.items()}
    failed = {kernel: {"error": message} for kernel, message in errors.items()}
    return [
        {"case": case, "dim": dim, "kernel": kernel, "tile": list(ran_with[kernel])} | result
        for kernel, result in (ran | failed).items()
        if kernel in CANDIDATES
    ]


def now() -> Any:
    """A moment on the GPU, or of the clock."""
    if not CUDA:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def seconds_between(start: Any, end: Any) -> float:
    """Of two moments."""
    if not CUDA:
        return end - start
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def compile_pass(wanted: tuple[str, int, dict[str, TileShape]]) -> str:
    """Run once with these tiles, so that others find the kernels compiled; what went wrong."""
    try:
        measure(*wanted, repeats=0)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]
    return ""


def best_tiles(
    rows: list[dict[str, Any]], capability: tuple[int, int] = H100
) -> dict[str, dict[str, dict[int, tuple[int, ...]]]]:
    """By kind of call, kernel and width: the tile that took least time.

    One that is in the table stays there if no other took `MORE` times less.

    Args:
        rows: of `measure`.
        capability: of the GPU that they are from.
    """
    best: dict[str, dict[str, dict[int, tuple[int, ...]]]] = {}
    for base, case in KINDS.items():
        kind = kind_on(capability, base)

        def time_of(row: dict[str, Any], kind: str = kind) -> float:
            usual = TileShape(*TILES[kind][row["kernel"]][WIDTHS.index(row["dim"])])
            return row["us"] / (MORE if usual == TileShape(*row["tile"]) else 1)

        ran = [row for row in rows if row["case"] == case and "us" in row]
        for row in sorted(ran, key=time_of):
            of_kernel = best.setdefault(kind, {}).setdefault(row["kernel"], {})
            of_kernel.setdefault(row["dim"], tuple(row["tile"]))
    return best


def timed(rows: list[dict[str, Any]], capability: tuple[int, int]) -> str:
    """Which kinds of calls were, in words, with how many of their kernels at each width."""
    told = []
    for kind, of_kernels in best_tiles(rows, capability).items():
        widths = [dim for by_width in of_kernels.values() for dim in by_width]
        told.append(
            f"{kind} ({', '.join(f'{widths.count(x)} at {x}' for x in sorted(set(widths)))})"
        )
    return ", ".join(told)


def updated_table(
    rows: list[dict[str, Any]], capability: tuple[int, int] = H100
) -> dict[str, dict[str, Any]]:
    """`tile_table.TILES` with the best tiles of what was timed on a GPU of some capability."""
    table: dict[str, dict[str, Any]] = {kind: dict(of) for kind, of in TILES.items()}
    for kind, of_kernels in best_tiles(rows, capability).items():
        for kernel, by_width in of_kernels.items():
            shapes = list(table[kind][kernel])
            for dim, tile in by_width.items():
                shapes[WIDTHS.index(dim)] = tile
            table[kind][kernel] = tuple(shapes)
    return table


def _short(tile: tuple[int, ...]) -> tuple[int, ...]:
    """Without a limit of registers, if it is none."""
    return tuple(tile[:4]) if tuple(tile[4:]) == (0,) else tuple(tile)


def table_text(table: dict[str, dict[str, Any]], source: str) -> str:
    """The table's file: its lines up to the table, and the table.

    Args:
        table: as `tile_table.TILES`.
        source: where its numbers come from, a line.
    """
    head, _, _ = TABLE.read_text().partition("\nSOURCE = ")
    words = wrap(source, 90, break_on_hyphens=False)
    ends = [*[" "] * (len(words) - 1), ""]
    parts = [f'    "{line}{end}"' for line, end in zip(words, ends, strict=True)]
    lines = ["SOURCE = (", *parts, ")", "TILES = {"]
    for kind, of_kernels in table.items():
        lines.append(f'    "{kind}": {{')
        lines += [
            f'        "{kernel}": ({", ".join(str(_short(tile)) for tile in shapes)}),'
            for kernel, shapes in of_kernels.items()
        ]
        lines.append("    },")
    return "\n".join([head, *lines, "}", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="CASE",
                        help=f"these alone (all): {', '.join(CASES)}")  # fmt: skip
    parser.add_argument("--dims", nargs="+", type=int, choices=WIDTHS[:2], default=[64, 128])
    parser.add_argument("--minutes", type=float, default=6, help="after which no pass begins (6)")
    parser.add_argument("--out", type=Path, default=RESULTS / "tiles.json")
    parser.add_argument("--usual", action="store_true", help="the tiles of the table alone")
    parser.add_argument(
        "--write", action="store_true", help="from the file into the table, no more"
    )
    options = parser.parse_args()
    if not (options.write or CUDA or os.environ.get("TRITON_INTERPRET") == "1"):
        print("scripts.sweep_tiles: there must be a CUDA device, got none", file=sys.stderr)
        sys.exit(2)
    if options.write and not options.out.is_file():
        parser.error(f"argument --out: must be a file to write the table from, got {options.out}")
    check_out(parser, options.out)
    result: dict[str, Any] = {"rows": []}
    if options.out.is_file():
        result = json.loads(options.out.read_text())
    if options.write:
        major, minor = result["capability"]
        source = (
            f"{result['device']}, {result['tokens']} tokens, up to 64 or 128 wide: "
            f"{timed(result['rows'], (major, minor))}; the rest as before, or not timed"
        )
        TABLE.write_text(table_text(updated_table(result["rows"], (major, minor)), source))
        return
    capability = torch.cuda.get_device_capability() if CUDA else H100
    device = torch.cuda.get_device_name() if CUDA else "the interpreter"
    if result["rows"] and result["device"] != device:
        parser.error(f"argument --out: must be a new file, or with times of {device}, got some of "
                     f"{result['device']}")  # fmt: skip
    stop = time.monotonic() + 60 * options.minutes
    done = {(row["case"], row["dim"], row["kernel"], *row["tile"]) for row in result["rows"]}
    wanted = [
        (case, dim, tiles)
        for dim in options.dims
        for case in options.cases
        for tiles in ([{}] if options.usual else passes(case, dim, capability))
        if options.usual
        or any((case, dim, kernel, *tile) not in done for kernel, tile in tiles.items())
    ]
    if CUDA:
        with get_context("spawn").Pool() as pool:
            for number, problem in enumerate(pool.imap_unordered(compile_pass, wanted)):
                print(f"compiled {number + 1} of {len(wanted)} {problem}", flush=True)
                if time.monotonic() > stop - 30 * options.minutes:
                    break  # the rest is compiled when it is timed
    result["device"] = device
    result["capability"] = list(capability)
    result["tokens"] = LENGTH
    for case, dim, tiles in wanted:
        if time.monotonic() > stop:
            print("no time was left")
            break
        rows = measure(case, dim, tiles, REPEATS)
        for row in rows:
            which = case, dim, row["kernel"], *row["tile"]
            if which not in done:
                done.add(which)
                result["rows"].append(row)
                print(json.dumps(row), flush=True)
        save(options.out, result)


if __name__ == "__main__":
    main()
