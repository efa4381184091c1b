"""Time and memory of the op against its rivals, as ratios to plain SDPA in one interleaved run.

Every round runs the unit and then each contender; a ratio is taken within its round, and the
medians of the ratios are reported with their 20th and 80th percentiles. Beside each timing stands
the largest difference from float64. On the CPU, memory is the peak of a fresh process, and its
growth; what is measured is in `scenes.py`. On a GPU the unit is the fastest of torch's SDPA
backends and memory what torch allocates; what is measured is in `cuda_scenes.py`, the most
important first, and what `--minutes` leaves no room for is left out. `tables.py` writes the pages.

    python benchmarks/attention.py
    python benchmarks/attention.py --only "L=1024" --skip-tests --out some.json
    python benchmarks/attention.py --device cuda --minutes 4
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from comparing import compare
from cuda_scenes import ON_CUDA
from machine import machine
from memory import all_memory
from scenes import MEMORY, TIME
from targets import verdict

HERE = Path(__file__).parent
TESTS = {"cpu": (), "cuda": ("-k", "triton")}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=tuple(TESTS), default="cpu")
    parser.add_argument("--out", type=Path, help="results/DEVICE.json")
    parser.add_argument("--only", nargs="+", help="names of scenes (all)")
    parser.add_argument("--skip-tests", action="store_true", help="for work on the benchmark")
    parser.add_argument("--minutes", type=float, default=4.0, help="on a GPU, after the tests (4)")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("benchmarks/attention.py: --device cuda needs a CUDA device", file=sys.stderr)
        sys.exit(2)
    if not options.skip_tests:
        tests = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "tests/ops", *TESTS[options.device]],
            cwd=HERE.parent,
            check=False,
        )
        if tests.returncode:
            sys.exit("benchmarks/attention.py: the op's tests are red: no numbers")
    out = options.out or HERE / "results" / f"{options.device}.json"
    (on_cuda if options.device == "cuda" else on_cpu)(out, options)


def on_cpu(out: Path, options: argparse.Namespace) -> None:
    wanted = [one for one in (*TIME, *MEMORY) if not options.only or one.name in options.only]
    result = {
        "machine": machine(),
        "scenes": {one.name: asdict(one) for one in wanted},
        "time": [
            row for one in wanted if one in TIME for name in one.cases for row in compare(one, name)
        ],
        "memory": [row for one in wanted if one in MEMORY for row in all_memory(one)],
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"wrote {out}")


def on_cuda(out: Path, options: argparse.Namespace) -> None:
    from on_cuda import measure

    wanted = tuple(one for one in ON_CUDA if not options.only or one.name in options.only)
    result = measure(wanted, out, options.minutes)
    print(f"wrote {out}")
    print(verdict(result))


if __name__ == "__main__":
    main()
