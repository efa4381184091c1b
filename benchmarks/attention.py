"""Time and memory of the op against its rivals, as ratios to plain SDPA in one interleaved run.

Every round runs the unit and then each contender; a ratio is taken within its round, and the
medians of the ratios are reported with their 20th and 80th percentiles. Beside each timing stands
the largest difference from float64. On the CPU, memory is the peak of a fresh process, and its
growth; what is measured is in `workloads/settings.py`. On a GPU the unit is the fastest of torch's
SDPA backends and memory what torch allocates; what is measured is in `workloads/gpu_settings.py`,
the most important first, and what `--minutes` leaves no room for is left out. `benchmarks.tables`
writes the pages.

    python -m benchmarks.attention
    python -m benchmarks.attention --only "L=1024" --skip-tests --out some.json
    python -m benchmarks.attention --backends native --out native.json
    python -m benchmarks.attention --device cuda --minutes 4
    python -m benchmarks.attention --device cuda --more     # float32 and grids: cuda_more.json
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import torch

from relpos import backends

from .files import RESULTS, ROOT, save
from .measure.gpu import measure_on_gpu
from .measure.machine import machine
from .measure.memory import rows_of_memory
from .measure.passes import time_scheme
from .options import check_part
from .report.targets import GPU_TARGETS, TARGETS, verdict
from .workloads.gpu_settings import GPU_SETTINGS, MORE_GPU_SETTINGS
from .workloads.settings import MEMORY_SETTINGS, TIME_SETTINGS

TESTS = {"cpu": (), "cuda": ("-k", "triton")}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=tuple(TESTS), default="cpu")
    parser.add_argument("--out", type=Path, help="benchmarks/results/DEVICE.json")
    parser.add_argument("--only", nargs="+", help="names of settings, with --out (all)")
    parser.add_argument(
        "--backends", nargs="+", choices=("auto", *backends()),
        help="these alone, without rivals, with --out (CPU; all)",
    )  # fmt: skip
    parser.add_argument("--skip-tests", action="store_true", help="for work on the benchmark")
    parser.add_argument("--minutes", type=float, default=4.0, help="on a GPU, after the tests (4)")
    parser.add_argument("--more", action="store_true", help="on a GPU: float32 and grids instead")
    options = parser.parse_args()
    if options.more and options.device != "cuda":
        parser.error("--more: must be with --device cuda")
    if options.device == "cuda" and not torch.cuda.is_available():
        print("benchmarks.attention: --device cuda needs a CUDA device", file=sys.stderr)
        sys.exit(2)
    on_a_gpu = MORE_GPU_SETTINGS if options.more else GPU_SETTINGS
    settings = on_a_gpu if options.device == "cuda" else (*TIME_SETTINGS, *MEMORY_SETTINGS)
    check_part(parser, options.only, (setting.name for setting in settings), options.out)
    if options.backends and options.out is None:
        parser.error("--out: must be given with --backends, whose result is a part")
    if not options.skip_tests:
        tests = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "--thorough", "tests/ops",
             *TESTS[options.device]],
            cwd=ROOT, check=False,
        )  # fmt: skip
        if tests.returncode:
            sys.exit("benchmarks.attention: the op's tests are red: no numbers")
    out = options.out or RESULTS / f"{options.device}{'_more' * options.more}.json"
    (on_gpu if options.device == "cuda" else on_cpu)(out, options)


def on_cpu(out: Path, options: argparse.Namespace) -> None:
    """Time, then memory."""
    for_time, for_memory = (
        [
            replace(setting, backends=tuple(options.backends), rivals=False)
            if options.backends
            else setting
            for setting in settings
            if not options.only or setting.name in options.only
        ]
        for settings in (TIME_SETTINGS, MEMORY_SETTINGS)
    )
    result = {
        "machine": machine(),
        "settings": {setting.name: setting.as_json() for setting in (*for_time, *for_memory)},
        "time": [
            row
            for setting in for_time
            for scheme in setting.schemes
            for row in time_scheme(setting, scheme)
        ],
        "memory": [row for setting in for_memory for row in rows_of_memory(setting)],
    }
    save(out, result)
    print(f"wrote {out}")
    print(verdict(result, TARGETS))


def on_gpu(out: Path, options: argparse.Namespace) -> None:
    """Both for each scheme, then which targets were missed."""
    settings = MORE_GPU_SETTINGS if options.more else GPU_SETTINGS
    chosen = tuple(one for one in settings if not options.only or one.name in options.only)
    result = measure_on_gpu(chosen, out, options.minutes)
    print(f"wrote {out}")
    if not options.more:  # of which there are no targets
        print(verdict(result, GPU_TARGETS))


if __name__ == "__main__":
    main()
