"""Which backend is fastest, over a sweep of sizes: what `backend="auto"` is to choose.

Forward, and forward and backward, of native, tiled and reference in one interleaved run, the
shortest timing of each; beside the fastest stands the one that "auto" chose.

    python -m benchmarks.choice
    python -m benchmarks.choice --only "16 x 16, B=1, H=8" --out some.json
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from relpos.ops.dispatch import choose
from relpos.ops.inputs import prepare

from .files import RESULTS, save
from .measure.machine import machine
from .measure.passes import FORWARD, passes
from .measure.timing import interleaved
from .options import check_part
from .workloads.schemes import SCHEMES, make_workload
from .workloads.settings import GRIDS, RELATIVE_LOGITS, Setting
from .workloads.workload import Workload, contenders, inputs

BACKENDS = ("native", "tiled", "reference")

# Queries, keys, sequences, heads.
SIZES = (
    (1, 1024, 1, 8),
    (1, 8192, 1, 8),
    (1, 1024, 8, 8),
    (8, 1024, 1, 8),
    (64, 2048, 1, 8),
    (16, 16, 1, 8),
    (16, 16, 64, 8),
    (64, 64, 1, 8),
    (64, 64, 16, 8),
    (128, 128, 1, 8),
    (256, 256, 2, 8),
    (512, 512, 1, 4),
    (1024, 1024, 1, 1),
    (2048, 2048, 1, 2),
)
IN_BFLOAT16 = ((1, 1024, 1, 8), (16, 16, 64, 8), (64, 64, 16, 8), (2048, 2048, 1, 2))


def sweep() -> list[Setting]:
    """The sweep; a grid needs as many queries as keys, and decoding has no backward."""
    every = tuple(name for name in SCHEMES if name != RELATIVE_LOGITS)  # which a GPU measures
    decoded = tuple(name for name in every if name not in GRIDS)
    return [
        Setting(
            f"{i} x {j}, B={b}, H={h}", i, every if i == j else decoded,
            keys=j, batch=b, heads=h, dtype=dtype, backends=BACKENDS, backward=i > 1,
        )
        for dtype, sizes in (("float32", SIZES), ("bfloat16", IN_BFLOAT16))
        for i, j, b, h in sizes
    ]  # fmt: skip


def chosen(workload: Workload, tensors: list[Tensor]) -> str:
    """The backend that "auto" takes."""
    q, k, v = tensors
    arguments = workload.arguments(q, k)
    mask, documents = arguments.pop("mask"), arguments.pop("documents")
    prepared = prepare(
        "attention", q, k, v, workload.terms(q, k), mask, documents, scale=None, query_start=None,
        return_lse=False, **arguments,
    )  # fmt: skip
    return choose("auto", prepared).__name__.rpartition(".")[2]  # type: ignore[attr-defined]


def shortest(timed: Mapping[str, Callable[[], object]], budget: float) -> dict[str, float]:
    """The shortest timing of each, in seconds: what else the machine does only adds to it."""
    rounds = interleaved(timed, seconds=budget)
    return {name: min(timings[name] for timings in rounds if name in timings) for name in timed}


def measure(setting: Setting, scheme: str) -> list[dict]:
    """One scheme at one size: a row for each pass."""
    workload, tensors = make_workload(scheme, setting), inputs(setting)
    runs = contenders(setting, workload)
    ours = {backend: runs[f"relpos {backend}"] for backend in BACKENDS}
    rows = []
    for pass_name, timed in passes(setting, workload, ours, tensors).items():
        seconds = shortest(timed, 0.02)
        if seconds["native"] > min(seconds.values()):  # look again, longer
            again = shortest(timed, 0.2)
            seconds = {backend: min(seconds[backend], again[backend]) for backend in BACKENDS}
        fastest = min(BACKENDS, key=seconds.__getitem__)
        with torch.set_grad_enabled(pass_name != FORWARD):
            auto = chosen(workload, tensors)
        rows.append(
            {"queries": setting.queries, "keys": setting.length, "batch": setting.batch}
            | {"heads": setting.heads, "dtype": setting.dtype}
            | {"workload": scheme, "pass": pass_name}
            | {"fastest": fastest, "auto": auto, "auto_slower_by": seconds[auto] / seconds[fastest]}
            | {"native_slower_by": seconds["native"] / seconds[fastest], "seconds": seconds}
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="benchmarks/results/choice.json")
    parser.add_argument("--only", nargs="+", help='sizes, as "16 x 16, B=1, H=8", with --out (all)')
    options = parser.parse_args()
    settings, rows = sweep(), []
    check_part(parser, options.only, (setting.name for setting in settings), options.out)
    for setting in settings:
        if options.only and setting.name not in options.only:
            continue
        for scheme in setting.schemes:
            for row in measure(setting, scheme):
                rows.append(row)
                if row["fastest"] != "native":
                    print(
                        f"{setting.name:22} {setting.dtype:9} {scheme:27} {row['pass']:17} native "
                        f"takes {row['native_slower_by']:.2f} times as long as {row['fastest']}",
                        flush=True,
                    )
    out = options.out or RESULTS / "choice.json"
    save(out, {"machine": machine(), "choice": rows})
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
