"""Small calls: their ratios to plain SDPA, and what a call costs that has next to no work."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from relpos import attention

from ..workloads.schemes import make_workload
from ..workloads.settings import NARROW_SHAW, NO_TERMS, Setting
from ..workloads.workload import NATIVE, UNIT, Run, inputs
from .passes import BOTH, FORWARD, errors, forward, forward_and_backward, rows_of_pass
from .timing import interleaved, percentiles

__all__ = [
    "COMPILED",
    "FIXED_COST_PASSES",
    "FIXED_COST_SCHEMES",
    "measure_fixed_costs",
    "time_small_calls",
]

# Of a fixed cost, beside those of every benchmark: forward that keeps what backward will need, and
# the two usual ones compiled.
RECORDED, COMPILED = "forward with gradients", "compiled"
FIXED_COST_PASSES = (FORWARD, RECORDED, BOTH, f"{COMPILED}: {FORWARD}", f"{COMPILED}: {BOTH}")
FIXED_COST_SCHEMES = (NO_TERMS, NARROW_SHAW)
# More queries than a step of decoding has, which goes another way.
_TINY = Setting("fixed cost", 16, FIXED_COST_SCHEMES, batch=1, heads=1, width=16)


def _runs(
    setting: Setting, scheme: str
) -> tuple[dict[str, Run], list[Tensor], tuple[Tensor, ...], dict[str, float]]:
    """SDPA and the kernel; their inputs; the tables, which are learned; and errors.

    Terms are made beforehand, and their tables have the dtype of the call.
    """
    workload, tensors = make_workload(scheme, setting), inputs(setting)
    dtype = setting.torch_dtype
    terms = workload.terms(*tensors[:2])
    terms = terms.map(lambda table: table.detach().to(dtype).requires_grad_())

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, terms, causal=workload.causal, backend="native")

    def unit(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(q, k, v, is_causal=workload.causal)

    runs: dict[str, Run] = {UNIT: unit, NATIVE: ours}
    return runs, tensors, tuple(terms.tensors), errors(workload, runs, tensors)


def time_small_calls(setting: Setting, scheme: str) -> list[dict]:
    """Time one scheme in one setting, as `time_scheme` does: a row for each pass."""
    runs, tensors, tables, error = _runs(setting, scheme)
    leaves, grad = [*tensors, *tables], torch.ones_like(tensors[0])
    timed = {
        FORWARD: {name: partial(forward, run, tensors) for name, run in runs.items()},
        BOTH: {
            name: partial(forward_and_backward, run, tensors, leaves, grad)
            for name, run in runs.items()
        },
    }
    return [
        row
        for pass_name, of_pass in timed.items()
        for row in rows_of_pass(setting, scheme, pass_name, of_pass, error)
    ]


def measure_fixed_costs(passes: tuple[str, ...] = FIXED_COST_PASSES) -> dict[str, Any]:
    """What a tiny call takes longer than plain SDPA, in microseconds: a row for each pass."""
    # Graphs of an older relpos may lie in torch's cache on disk.
    with torch.compiler.config.patch(force_disable_caches=True):  # type: ignore[attr-defined]
        rows = [_fixed_cost(scheme, name) for scheme in FIXED_COST_SCHEMES for name in passes]
    return {"tokens": _TINY.queries, "width": _TINY.width, "rows": rows}


def _fixed_cost(scheme: str, pass_name: str) -> dict[str, Any]:
    runs, tensors, tables, _ = _runs(_TINY, scheme)
    timed: dict[str, Callable[[], Any]] = {}
    for name, run in runs.items():
        of_call = torch.compile(run) if pass_name.startswith(COMPILED) else run
        if pass_name == RECORDED:
            timed[name] = partial(of_call, *tensors)
        elif pass_name.endswith(BOTH):
            leaves = [*tensors, *tables]
            grad = torch.ones_like(tensors[0])
            timed[name] = partial(forward_and_backward, of_call, tensors, leaves, grad)
        else:
            timed[name] = partial(forward, of_call, tensors)
    for run in timed.values():
        run()  # compiled now: so long a first run would be taken for how long each takes
    rounds = interleaved(timed, leading=(UNIT, NATIVE), seconds=_TINY.seconds)
    torch.compiler.reset()  # or the next function would find the cache of this one full
    microseconds = {name: [1e6 * timings[name] for timings in rounds] for name in (NATIVE, UNIT)}
    beyond = [a - b for a, b in zip(microseconds[NATIVE], microseconds[UNIT], strict=True)]
    row = {
        "workload": scheme,
        "pass": pass_name,
        "rounds": len(rounds),
        "beyond": percentiles(beyond),
        "microseconds": percentiles(microseconds[NATIVE]),
        "unit_microseconds": percentiles(microseconds[UNIT]),
    }
    print(
        f"{scheme:18} {pass_name:26} {row['beyond']['median']:6.1f} us beyond plain "
        f"{row['unit_microseconds']['median']:6.1f} us",
        flush=True,
    )
    return row
