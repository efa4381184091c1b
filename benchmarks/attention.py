"""Time and memory of the op against its rivals, as ratios to plain SDPA in one interleaved run.

Every round runs the unit and then each contender once; a ratio is taken within its round, and the
medians of the ratios are reported with their 20th and 80th percentiles. Beside each timing stands
the largest difference from float64. Memory is the growth of a fresh process's resident set.

    python benchmarks/attention.py --out benchmarks/results/cpu.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from cases import Case, cases
from machine import machine

HERE = Path(__file__).parent
BATCH, HEADS, WIDTH = 2, 8, 64
LONG = 16384


def inputs(length: int, batch: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [
        torch.randn(batch, HEADS, length, WIDTH, generator=draw).requires_grad_() for _ in range(3)
    ]


def timed(run: Callable[[], Tensor], backward: bool, grad: Tensor) -> float:
    start = time.perf_counter()
    if backward:
        run().backward(grad)
    else:
        with torch.no_grad():
            run()
    return time.perf_counter() - start


def spread(values: list[float]) -> dict[str, float]:
    """Median and percentiles."""
    steps = statistics.quantiles(values, n=5, method="inclusive")
    return {"median": statistics.median(values), "p20": steps[0], "p80": steps[3]}


def compare(case: Case, backward: bool, rounds: int) -> list[dict]:
    """Time one case: the unit and all contenders, interleaved."""
    tensors = inputs(case.length, BATCH)
    grad = torch.ones_like(tensors[0])
    contenders = [some for some in case.contenders if some.backward or not backward]
    with torch.no_grad():
        exact = case.exact(*(x.double() for x in tensors))
        errors = [(some.run(*tensors).double() - exact).abs().max().item() for some in contenders]
        del exact
    runs = {"plain SDPA": case.unit} | {some.name: some.run for some in contenders}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 1):
        for name, run in runs.items():
            for leaf in (*tensors, *case.tables):
                leaf.grad = None
            lasted = timed(lambda run=run: run(*tensors), backward, grad)
            if turn:  # the first round warms up
                seconds[name].append(lasted)
    unit = seconds.pop("plain SDPA")
    rows = []
    for (name, own), error in zip(seconds.items(), errors, strict=True):
        rows.append(
            {
                "case": case.name,
                "contender": name,
                "pass": "forward+backward" if backward else "forward",
                "length": case.length,
                "ratio": spread([a / b for a, b in zip(own, unit, strict=True)]),
                "seconds": spread(own),
                "unit_seconds": spread(unit),
                "error": error,
            }
        )
        row = rows[-1]
        print(
            f"{case.name:28} {name:24} {row['pass']:17} {row['ratio']['median']:6.2f} x plain"
            f"  {1e3 * row['seconds']['median']:7.0f} ms  error {error:.1e}",
            flush=True,
        )
    return rows


def memory(index: int, contender: str, length: int, batch: int) -> dict[str, float]:
    """Peak of a fresh process that runs forward and backward once, and its growth, in MiB."""
    out = subprocess.run(
        [sys.executable, HERE / "memory.py", str(index), contender, str(length), str(batch)],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(out.stdout.splitlines()[-1])


def all_memory() -> list[dict]:
    """Every contender at L=2048, ours and plain SDPA at L=16384."""
    rows = []
    for length, batch, everyone in ((2048, BATCH, True), (LONG, 1, False)):
        for index, case in enumerate(cases(length, HEADS, WIDTH)):
            names = [some.name for some in case.contenders if some.backward] if everyone else [
                "relpos tiled"]  # fmt: skip
            for name in ("plain SDPA", *names):
                mebibytes = memory(index, name, length, batch)
                rows.append(
                    {"case": case.name, "contender": name, "length": length, "batch": batch}
                    | mebibytes
                )
                print(
                    f"{case.name:28} {name:24} L={length:<6} grows by "
                    f"{mebibytes['growth_mib']:6.0f} MiB to {mebibytes['peak_mib']:.0f}",
                    flush=True,
                )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--length", type=int, default=2048, help="tokens (2048)")
    parser.add_argument("--rounds", type=int, default=7, help="timed rounds for each case (7)")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "cpu.json")
    parser.add_argument("--skip-tests", action="store_true", help="for work on the benchmark")
    options = parser.parse_args()
    if not options.skip_tests:
        tests = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "tests/attention"],
            cwd=HERE.parent,
            check=False,
        )
        if tests.returncode:
            sys.exit("benchmarks/attention.py: the op's tests are red: no numbers")

    torch.manual_seed(0)
    rows = [
        row
        for case in cases(options.length, HEADS, WIDTH)
        for backward in (False, True)
        for row in compare(case, backward, options.rounds)
    ]
    result = {
        "machine": machine(),
        "settings": {
            "batch": BATCH, "heads": HEADS, "width": WIDTH, "dtype": "float32",
            "rounds": options.rounds,
        },
        "time": rows,
        "memory": all_memory(),
    }  # fmt: skip
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
