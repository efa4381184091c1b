"""How long Python takes before a Triton kernel is launched, without a GPU.

    python -m scripts.host_time
    python -m scripts.host_time --rounds 3 --out /tmp/host.json

Tensors of the CPU stand for those of a GPU, and nothing is launched: what is left is the checks,
the kernels' arguments, the outputs' memory and torch's own small operations, such as those that
make a bias's table. Passes are made often enough to be recorded (`recorded.py`). Backward is
torch's, of one call's output. Beside it stand torch's own SDPA for a single query and key on this
CPU, which does next to nothing either, and Triton's launcher up to the driver (a kernel that is
compiled already is found again). All in turn, round by round; medians. The machine must be quiet.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import triton
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.files import RESULTS, save
from benchmarks.measure.machine import machine
from benchmarks.options import check_out
from relpos import Terms, attention

from .compile_ahead import compile_call, random
from .kernel_facts import CASES

__all__ = ["measured"]

entry: Any = importlib.import_module("relpos.ops.triton.entry")
launch: Any = importlib.import_module("relpos.ops.triton.launch")
package: Any = importlib.import_module("relpos.ops.triton")
tuning: Any = importlib.import_module("relpos.ops.triton.tuning")

BATCH, HEADS, LENGTH, WIDTH = 1, 2, 256, 64
CALLS = 100  # of a round


def calls() -> dict[str, Callable[[], Any]]:
    """What is timed, by name: the forward pass without gradients, with them, and backward."""
    q, k, v = (random(BATCH, HEADS, LENGTH, WIDTH, dtype=torch.float16) for _ in range(3))

    def both(name: str, label: str, **options: Any) -> dict[str, Callable[[], Any]]:
        terms = CASES[name].terms(q)
        terms = terms.map(lambda x: x.detach().half().requires_grad_())

        def forward() -> torch.Tensor:
            return attention(q, k, v, terms, causal=CASES[name].causal, backend="triton", **options)

        out, leaves = forward(), [q, k, v, *terms.tensors]
        flow = torch.ones_like(out)

        def inference() -> torch.Tensor:
            with torch.no_grad():
                return forward()

        return {
            f"{label}, inference": inference,
            label: forward,
            f"{label}, backward": lambda: torch.autograd.grad(
                out, leaves, flow, retain_graph=True
            ),
        }  # fmt: skip

    single = random(1, 1, 1, 8, dtype=torch.float32)
    found: dict[str, Callable[[], Any]] = {}
    for name in CASES:
        if not name.startswith("grid"):
            found |= both(name, name)
    found |= both("T5 bias", "T5 bias, scale 1", scale=1.0)
    found["SDPA of torch, one query and key"] = lambda: scaled_dot_product_attention(
        single, single, single
    )
    return found


def launcher() -> Callable[[], Any]:
    """Triton's own part of a launch of the plain forward kernel, for an H100."""
    q = random(BATCH, HEADS, LENGTH, WIDTH)
    launched: list[tuple[Any, tuple[Any, ...], Any, dict[str, Any]]] = []
    compile_call(
        "sm_90", lambda: attention(q, q, q, Terms(), backend="triton"), tiles=lambda _, x: x[0]
    )
    compile_only = launch.run_programs
    launch.run_programs = lambda kernel, _, *arguments, shape, known, **constants: launched.append(
        (kernel, arguments, shape, constants)
    )
    attention(q, q, q, Terms(), backend="triton")
    launch.run_programs = compile_only
    kernel, arguments, shape, constants = launched[0]
    return lambda: kernel.run(
        *arguments, **constants, grid=(1,), warmup=True, **shape.options,
    )  # fmt: skip


class _Nothing:
    """A kernel that is not launched."""

    def __getitem__(self, _: tuple[int, int, int]) -> Callable[..., None]:
        return lambda *_: None


def measured(rounds: int) -> dict[str, float]:
    """Medians of microseconds for each call."""
    run_programs = launch.run_programs
    find = launcher()
    launch.run_programs, launch._run = run_programs, lambda *_: _Nothing()
    # The backend's own checks, as where the CPU is to run it.
    package.unsupported, entry._INTERPRETED = entry.unsupported, True
    tuning.processors = lambda _: 4  # as few as lets nobody sum for long over their splits
    what = calls() | {"Triton's launcher up to the driver": find}
    found: dict[str, list[float]] = {name: [] for name in what}
    for number in range(rounds + 1):
        for name, call in what.items():
            times = []
            for _ in range(CALLS):
                start = time.perf_counter()
                call()
                times.append(1e6 * (time.perf_counter() - start))
            if number:  # the first one warms up
                found[name].append(median(times))
    return {name: round(median(x), 1) for name, x in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path, default=RESULTS / "host_time.json")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"argument --rounds: must be 1 or more, got {options.rounds}")
    check_out(parser, options.out)
    torch.set_num_threads(1)
    result = measured(options.rounds)
    for name, microseconds in result.items():
        print(f"{name:40}{microseconds:8.1f} us")
    save(options.out, {"machine": machine(), "triton": triton.__version__, "us": result})


if __name__ == "__main__":
    main()
