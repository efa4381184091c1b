"""One scheme in one setting: its passes, their errors against float64, their rows in the result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from relpos.ops.native.library import instructions

from ..workloads.rivals import FORWARD_ONLY
from ..workloads.schemes import make_workload
from ..workloads.settings import Setting
from ..workloads.workload import NATIVE, TRITON, UNIT, Run, Workload, contenders, exact, inputs
from .machine import machine
from .timing import Clock, interleaved, percentiles, ratios, wall_clock

__all__ = [
    "BOTH",
    "FORWARD",
    "errors",
    "measure_settings",
    "passes",
    "rows_of_pass",
    "time_scheme",
]

# Names of the passes in results.
FORWARD, BOTH = "forward", "forward+backward"

# The contenders to which ratios are kept.
AGAINST = (UNIT, NATIVE, TRITON, "relpos reference")
LEADING = (UNIT, NATIVE, TRITON)

TimedRuns = dict[str, Callable[[], None]]


def forward(run: Run, tensors: list[Tensor]) -> None:
    """One forward pass without gradients."""
    with torch.no_grad():
        run(*tensors)


def forward_and_backward(
    run: Run, tensors: list[Tensor], leaves: list[Tensor], grad: Tensor
) -> None:
    """One forward and backward pass, to the gradients of all leaves."""
    torch.autograd.grad(run(*tensors), leaves, grad, allow_unused=True)


def errors(workload: Workload, runs: dict[str, Run], tensors: list[Tensor]) -> dict[str, float]:
    """Each contender's largest difference from float64."""
    with torch.no_grad():
        expected = exact(workload, *tensors)
        batch, heads = expected.shape[:2]
        return {
            name: (run(*tensors)[:batch, :heads].double() - expected).abs().max().item()
            for name, run in runs.items()
            if name != UNIT
        }


def passes(
    setting: Setting, workload: Workload, runs: dict[str, Run], tensors: list[Tensor]
) -> dict[str, TimedRuns]:
    """What is timed, by the name of the pass and then of the contender."""
    timed: dict[str, TimedRuns] = {
        FORWARD: {name: partial(forward, run, tensors) for name, run in runs.items()}
    }
    if setting.backward:
        leaves, grad = [*tensors, *workload.tables], torch.ones_like(tensors[0])
        timed[BOTH] = {
            name: partial(forward_and_backward, run, tensors, leaves, grad)
            for name, run in runs.items()
            if setting.device != "cpu" or name not in FORWARD_ONLY
        }
    return timed


def time_scheme(setting: Setting, scheme: str) -> list[dict]:
    """Time one scheme in one setting, pass by pass: a row for each contender."""
    workload, tensors = make_workload(scheme, setting), inputs(setting)
    runs = contenders(setting, workload)
    with float32_products(setting.precision):
        error = errors(workload, runs, tensors)
        return _time_passes(setting, scheme, workload, runs, tensors, error)


@contextmanager
def float32_products(precision: str) -> Iterator[None]:
    """Within it torch makes float32 products with this precision."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _time_passes(
    setting: Setting, scheme: str, workload: Workload, runs: dict[str, Run],
    tensors: list[Tensor], error: dict[str, float],
) -> list[dict]:  # fmt: skip
    return [
        row
        for pass_name, timed in passes(setting, workload, runs, tensors).items()
        for row in rows_of_pass(setting, scheme, pass_name, timed, error)
    ]


def measure_settings(
    settings: Iterable[Setting], timed: Callable[[Setting, str], list[dict]] = time_scheme
) -> dict[str, Any]:
    """Time every scheme of these settings: a result, with the compiled kernel's instructions."""
    settings = tuple(settings)
    return {
        "machine": machine() | {"instructions": instructions()},
        "settings": {setting.name: setting.as_json() for setting in settings},
        "time": [
            row
            for setting in settings
            for scheme in setting.schemes
            for row in timed(setting, scheme)
        ],
        "memory": [],
    }


def rows_of_pass(
    setting: Setting,
    scheme: str,
    pass_name: str,
    timed: TimedRuns,
    error: Mapping[str, float],
    *,
    clock: Clock = wall_clock,
) -> list[dict]:
    """Time one pass of a scheme: a row for each contender."""
    rounds = interleaved(timed, leading=LEADING, seconds=setting.seconds, clock=clock)
    rows = []
    for name in timed:
        if name == UNIT:
            continue
        seconds = [timings[name] for timings in rounds if name in timings]
        row: dict[str, Any] = {
            "setting": setting.name,
            "workload": scheme,
            "contender": name,
            "pass": pass_name,
            "rounds": len(seconds),
            "ratios": {
                other: percentiles(ratios(rounds, name, other))
                for other in AGAINST
                if other in timed and other != name
            },
            "seconds": percentiles(seconds),
            "unit_seconds": percentiles([timings[UNIT] for timings in rounds]),
            "error": error[name],
        }
        rows.append(row)
        print_row(row)
    return rows


def print_row(row: dict) -> None:
    """A line of progress."""
    print(
        f"{row['setting']:26} {row['workload']:26} {row['contender']:22} {row['pass']:17}"
        f"{row['ratios'][UNIT]['median']:6.2f} x plain {1e3 * row['seconds']['median']:9.2f} ms"
        f"  error {row['error']:.1e}  {row['rounds']} rounds",
        flush=True,
    )
