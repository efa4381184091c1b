"""What the compiler makes of the Triton kernels, without a GPU: loops, registers, and a prediction.

    python -m scripts.kernel_facts                        # all cases: minutes on two cores
    python -m scripts.kernel_facts --cases plain "Shaw keys" --dims 64 --architectures sm_90
    python -m scripts.kernel_facts --tiles dkdv=128x64x8x2 --out /tmp/facts.json    # another tile

Each kernel of a call over 4096 tokens in bf16 is compiled ahead of time. Its machine code says what
one turn of an inner loop costs a processor at least, if all that it does overlaps:

    tensor      flops / what the tensor cores do in a cycle
    issue       instructions of all warps / 4 a cycle
    special     exponentials and the like / 16 a cycle
    shared      bytes that instructions load and store there / 128 a cycle
    global      bytes copied and loaded / 32 a cycle, about what the second cache gives
    memory      bytes of stored `dS`, which does not fit there / 14 a cycle, a share of the GPU's

The largest, times the turns, summed over the kernels, against flash attention at a share of the
tensor cores' peak that is assumed, is the predicted ratio. Nothing here was measured.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isqrt
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import triton

from benchmarks.files import RESULTS, save
from benchmarks.options import check_out
from relpos import GridTerms, OffsetTable, Terms
from relpos.ops.triton.tuning import TileShape

from .compile_ahead import Compiled, compile_call, random, sequence, table
from .sass import Loop, disassemble, inner_loops, resources, serialized

__all__ = [
    "CASES",
    "PROCESSORS",
    "Case",
    "Processor",
    "blocks",
    "cycles_of",
    "facts",
    "predicted",
    "turns",
]

LENGTH = 4096
REGIONS = ("left", "band", "right")


@dataclass(frozen=True)
class Processor:
    """One of a GPU's (an SM), from its maker's documents.

    Args:
        registers: in all.
        shared: bytes, of which each program takes 1024 more than it asks for.
        warps: at most at once.
        tensor_flops: of bf16 in a cycle.
        mma_sync: the share of it that `mma.sync` reaches, where there is something faster.
        flash: the share of it that flash attention is taken to reach. FlashAttention-3's authors
            say 35 % of its predecessor and up to 75 % of their own on an H100, FlashAttention-2's
            50 to 73 % on an A100.
    """

    registers: int
    shared: int
    warps: int
    tensor_flops: int
    mma_sync: float
    flash: float


PROCESSORS = {
    "sm_90": Processor(65536, 228 << 10, 64, 4096, 0.625, 0.5),
    "sm_80": Processor(65536, 164 << 10, 64, 2048, 1.0, 0.6),
}

#: Products of queries, keys and values' width in a turn without tables: scores and outputs; those,
#: `dP` and `dq`; those, `dP`, `dv` and `dk`.
PRODUCTS = {"forward_kernel": 2, "dq_kernel": 3, "dkdv_kernel": 4}
#: The loops of kernels that do not go by regions, in order.
LOOPS = {
    "dtables_kernel": ("all",),
    "stored_dq_kernel": ("keys", "offsets"),
    "stored_dtables_kernel": ("all",),
    "axis_logits_kernel": ("coordinates",),
    "axis_dq_kernel": ("coordinates",),
    "axis_drows_kernel": ("tokens",),
}


def shaw_keys(q: torch.Tensor) -> Terms:
    """Clipped at 64, one table for all heads."""
    return Terms(keys=table(1, 64, 64, q.shape[3]))


def shaw_keys_values(q: torch.Tensor) -> Terms:
    """Clipped at 64, one table of each kind for all heads."""
    return Terms(keys=table(1, 64, 64, q.shape[3]), values=table(1, 64, 64, q.shape[3]))


def t5(q: torch.Tensor) -> Terms:
    """Its bias, constant from 128 on, a table for each head."""
    return Terms(bias=table(q.shape[1], 128, 128, None))


def huang(q: torch.Tensor) -> Terms:
    """A row for every offset, for causal attention."""
    return Terms(keys=table(1, q.shape[2] - 1, 0, q.shape[3]))


def inkling(q: torch.Tensor) -> Terms:
    """Logits of 16 numbers a query over the last 1024 keys."""
    keys: OffsetTable = table(1, 1023, 0, 16, beyond="zero")
    return Terms(keys=keys, q_rel=random(*q.shape[:3], 16))


def grid(q: torch.Tensor) -> GridTerms:
    """Keys along both axes of a square, of 64 x 64 tokens here, as SAM has them."""
    side = isqrt(q.shape[2])
    axes = tuple(Terms(keys=table(1, side - 1, side - 1, q.shape[3])) for _ in range(2))
    return GridTerms((side, side), axes)


@dataclass(frozen=True)
class Case:
    """A kind of call.

    Args:
        terms: of queries.
        causal: whether it is.
        offsets: of the tables that lie strictly inside, `(first, last)`; None: no band.
    """

    terms: Callable[[torch.Tensor], Any]
    causal: bool = False
    offsets: tuple[int, int] | None = None


CASES = {
    "plain": Case(lambda _: Terms()),
    "Shaw keys": Case(shaw_keys, offsets=(-64, 64)),
    "Shaw keys and values": Case(shaw_keys_values, offsets=(-64, 64)),
    "T5 bias": Case(t5, offsets=(-128, 128)),
    "Huang, causal": Case(huang, causal=True, offsets=(1 - LENGTH, 0)),
    "Inkling logits, causal": Case(inkling, causal=True, offsets=(-1024, 0)),
    "grid 64 x 64": Case(grid),
}


#: Cases without tables that are sheared, whose tiles may be wider.
UNSHEARED = {"plain", "T5 bias"}


def facts(
    architecture: str, case: str, dim: int, tiles: Mapping[str, TileShape] | None = None
) -> list[dict[str, Any]]:
    """Of each kernel of a case, forward and backward, and of each of its inner loops.

    Args:
        architecture: a key of `PROCESSORS`.
        case: a key of `CASES`.
        dim: width of a head.
        tiles: for kernels by their names in `tuning`, in place of those that it says.
    """
    chosen = CASES[case]
    compiled = compile_call(
        architecture,
        lambda: sequence(dim, LENGTH, terms=chosen.terms, causal=chosen.causal),
        tiles=lambda kernel, shapes: (tiles or {}).get(kernel.removesuffix(", in two"), shapes[0]),
    )
    # A launch for each chunk of stored scores; dq's ends and its band may have one each.
    once = {(each.name, _walked(each)): each for each in compiled}
    return [
        {"architecture": architecture, "case": case, "dim": dim}
        | _of_kernel(each, PROCESSORS[architecture], dim)
        for each in once.values()
    ]


def _of_kernel(compiled: Compiled, processor: Processor, dim: int) -> dict[str, Any]:
    cubin = compiled.binary.asm["cubin"]
    shape, shared = compiled.shape, compiled.binary.metadata.shared
    used = resources(cubin)
    loops = [loop for loop in inner_loops(disassemble(cubin)) if loop.tensor_flops()]
    needed = PRODUCTS.get(compiled.name)
    walks = [loop for loop in loops if needed and _products(loop, shape, dim) >= needed]
    regions = _walked(compiled)
    if regions == REGIONS and len(walks) == 2:
        regions = ("before", "grid")
    if needed and not 1 <= len(walks) <= len(regions):
        raise ValueError(f"{compiled.name} must have a loop for each region, got {len(walks)}")
    if not needed:
        walks, regions = loops, LOOPS.get(compiled.name, ())
        if len(loops) != len(regions):
            raise ValueError(f"{compiled.name} must have {len(regions)} loops, got {len(loops)}")
    names = {id(loop): name for loop, name in zip(walks, regions, strict=False)}
    return {
        "kernel": compiled.name,
        "tile": shape._asdict(),
        "shared": shared,
        **used,
        "serialized": serialized(compiled.binary.asm["ptx"]),
        "blocks": blocks(processor, used["registers"], shared, shape.warps),
        "loops": [
            {"region": names.get(id(loop), "other")}
            | loop.counts()
            | {"products": round(_products(loop, shape, dim), 3)}
            | {
                "cycles": cycles_of(loop, processor, shape.warps)
                | _of_stored(compiled, names.get(id(loop)))
            }
            for loop in loops
        ],
    }


def _walked(compiled: Compiled) -> tuple[str, ...]:
    """The regions that a kernel goes through; dq may have a launch for the ends and the band."""
    ends, band = (compiled.constants.get(f"WALKS_{name}", True) for name in ("ENDS", "BAND"))
    return tuple(x for x in REGIONS if (band if x == "band" else ends))


def _of_stored(compiled: Compiled, region: str | None) -> dict[str, float]:
    """Cycles for the `dS` of a tile on the way to memory, or from there."""
    stores = compiled.constants.get("STORES_D_SCORES") and region is not None
    if stores or compiled.name.startswith("stored_"):
        return {"memory": compiled.shape.m * compiled.shape.n * 2 / 14}
    return {}


def _products(loop: Loop, shape: TileShape, dim: int) -> float:
    """How many products of a tile and rows of the head's width a turn makes, doubled ones too."""
    return loop.tensor_flops() * shape.warps / (2 * shape.m * shape.n * dim)


def blocks(processor: Processor, registers: int, shared: int, warps: int) -> int:
    """How many programs a processor holds at once; registers are handed out by eights."""
    by_registers = processor.registers // (-(-registers // 8) * 8 * 32 * warps)
    return min(by_registers, processor.shared // (shared + 1024), processor.warps // warps)


def cycles_of(loop: Loop, processor: Processor, warps: int) -> dict[str, float]:
    """What each part of a processor needs for one turn of one program."""
    counts = loop.counts()
    rate: float = processor.tensor_flops
    if not any(opcode.startswith("HGMMA") for opcode in loop.opcodes):
        rate *= processor.mma_sync
    copied = loop.bytes_of("asynchronous copy", "synchronous load", "global store", "local")
    return {
        "tensor": warps * loop.tensor_flops() / rate,
        "issue": warps * counts["instructions"] / 4,
        "special": warps * 32 * counts["special function"] / 16,
        "shared": warps * loop.bytes_of("shared load", "shared store") / 128,
        "global": warps * copied / 32,
    }


def turns(kernel: dict[str, Any], case: Case) -> dict[str, int]:
    """How often a head runs each loop, by its region.

    Args:
        kernel: a row of `facts`.
        case: whose kernel it is.
    """
    m, n = kernel["tile"]["m"], kernel["tile"]["n"]
    first, last = case.offsets or (LENGTH, LENGTH)
    if kernel["kernel"].endswith("dtables_kernel"):
        chunks = range(first + 1, last, n)
        return {"all": sum(-(-(LENGTH - max(abs(o) - n, 0)) // m) for o in chunks)}
    found: dict[str, int] = dict.fromkeys((*REGIONS, "other", "offsets"), 0)
    if case.offsets:
        found["other"] = LENGTH // m * -(-(last - first) // n)
    for i0 in range(0, LENGTH, m):
        for j0 in range(0, LENGTH, n):
            lowest, highest = j0 - i0 - m + 1, j0 - i0 + n - 1
            if not (case.causal and lowest > 0):
                left, right = highest <= first, lowest >= last
                found["left" if left else "right" if right else "band"] += 1
    found["keys"] = sum(found[region] for region in REGIONS)
    for i0 in range(0, LENGTH, m):
        lowest = max(first + 1, -i0 - m + 1)
        found["offsets"] += -(-max(min(last, LENGTH - i0) - lowest, 0) // n)
    found["grid"] = found["left"]  # where a row of it is a tile; there are no tokens before it
    return found


def predicted(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The ratios to flash attention, forward and with backward.

    Kernels whose work grows as the tokens do, not as the pairs, are left out.

    Args:
        rows: of `facts`, all kernels of one case.
    """
    architecture, case, dim = rows[0]["architecture"], CASES[rows[0]["case"]], rows[0]["dim"]
    cycles: defaultdict[str, float] = defaultdict(float)
    for row in rows:
        cycles[row["kernel"]] += _cycles_of_kernel(row, case)
    pairs = LENGTH * LENGTH / (2 if case.causal else 1)
    processor = PROCESSORS[architecture]
    product = 2 * pairs * dim / (processor.tensor_flops * processor.flash)
    return {
        "forward": cycles["forward_kernel"] / (2 * product),
        "both": sum(cycles.values()) / (7 * product),
    }


def _cycles_of_kernel(kernel: dict[str, Any], case: Case) -> float:
    counts = turns(kernel, case)
    return sum(
        counts.get(loop["region"], 0) * max(loop["cycles"].values()) for loop in kernel["loops"]
    )


def table_of(rows: list[dict[str, Any]]) -> str:
    """A line for each loop, and one for each case's prediction."""
    lines = []
    for row in rows:
        tile = "{m}x{n}x{warps}".format(**row["tile"])
        for loop in row["loops"]:
            bound = max(loop["cycles"], key=loop["cycles"].__getitem__)
            lines.append(
                f"{row['architecture']} {row['case']:23} {row['dim']:4} {row['kernel'][:-7]:14}"
                f"{tile:>10} {loop['region']:8}{loop['instructions']:6} instructions"
                f"{loop['products']:6.2f} products{loop['barrier']:4} barriers"
                f"{loop['special function']:4} special{loop['synchronous load']:4} loads"
                f"{loop['local']:4} local {row['registers']:4} registers"
                f"{row['spilled']:5} spilled {row['blocks']} blocks,"
                f" {loop['cycles'][bound]:6.0f} cycles of {bound}"
            )
    return "\n".join(lines)


def _facts(wanted: tuple[str, str, int, dict[str, TileShape]]) -> list[dict[str, Any]]:
    return facts(*wanted)


def _tile(text: str) -> tuple[str, TileShape]:
    """`KERNEL=MxNxWARPSxSTAGES`."""
    found = re.fullmatch(r"(forward|dq|dkdv|dtables)=(\d+)x(\d+)x(\d+)x(\d+)", text)
    if found is None:
        raise argparse.ArgumentTypeError(
            f"must be KERNEL=MxNxWARPSxSTAGES, as dkdv=128x64x8x2, got {text!r}"
        )
    shape = TileShape(*map(int, found.groups()[1:]))
    m, n, warps, stages, _ = shape
    powers = all(x and x & (x - 1) == 0 for x in (m, n, warps))
    if not (powers and 16 <= n <= m <= 128 and warps <= 32 and 1 <= stages <= 8):
        raise argparse.ArgumentTypeError(
            "must have powers of two, 16 to 128 keys, as many queries or more up to 128, up to 32 "
            f"warps, and 1 to 8 stages, got {text!r}"
        )
    return found[1], shape


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--architectures", nargs="+", choices=PROCESSORS, default=list(PROCESSORS))
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="CASE",
                        help=f"these alone (all): {', '.join(CASES)}")  # fmt: skip
    parser.add_argument("--dims", nargs="+", type=int, choices=(64, 128), default=[64, 128])
    parser.add_argument("--tiles", nargs="+", type=_tile, default=[], metavar="KERNEL=MxNxWxS",
                        help="other tiles: queries, keys, warps, stages")  # fmt: skip
    parser.add_argument("--out", type=Path, default=RESULTS / "kernel_facts.json")
    options = parser.parse_args()
    if any(shape.n > 64 for _, shape in options.tiles) and set(options.cases) - UNSHEARED:
        parser.error(
            f"argument --tiles: only {', '.join(sorted(UNSHEARED))} take more than 64 keys"
        )
    if options.tiles and options.out == parser.get_default("out"):
        parser.error("argument --tiles: needs --out, since the results are of the table's tiles")
    check_out(parser, options.out)
    wanted = [
        (architecture, case, dim, dict(options.tiles))
        for architecture in options.architectures
        for dim in options.dims
        for case in options.cases
    ]
    result = json.loads(options.out.read_text()) if options.out.exists() else {}
    result["versions"] = {"torch": torch.__version__, "triton": triton.__version__}
    # A process for each: what compiles for a GPU that is not there is of no use afterwards.
    with get_context("spawn").Pool(maxtasksperchild=1) as pool:
        for rows in pool.imap(_facts, wanted):
            key = " / ".join(str(rows[0][name]) for name in ("architecture", "case", "dim"))
            result[key] = {"kernels": rows, "predicted": predicted(rows)}
            save(options.out, result)
            print(table_of(rows))
            print("predicted, against flash attention: {forward:.2f} forward, {both:.2f} with "
                  "backward\n".format(**result[key]["predicted"]), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
