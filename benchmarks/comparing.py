"""One case in one scene: what is timed, how far it is from float64, and its rows in the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cases import NATIVE, TRITON, UNIT, Case, Run, contenders, exact, inputs, make_case
from rivals import FORWARD_ONLY
from scenes import Scene
from timing import Clock, interleaved, ratios, spread, wall

__all__ = ["compare", "errors", "passes", "rows"]

# The contenders to which ratios are kept.
AGAINST = (UNIT, NATIVE, TRITON, "relpos reference")
LEADING = (UNIT, NATIVE, TRITON)

Timed = dict[str, Callable[[], None]]


def forward(run: Run, tensors: list[Tensor]) -> None:
    with torch.no_grad():
        run(*tensors)


def forward_and_backward(
    run: Run, tensors: list[Tensor], leaves: list[Tensor], grad: Tensor
) -> None:
    torch.autograd.grad(run(*tensors), leaves, grad, allow_unused=True)


def errors(case: Case, runs: dict[str, Run], tensors: list[Tensor]) -> dict[str, float]:
    """Each contender's largest difference from float64."""
    with torch.no_grad():
        right = exact(case, *tensors)
        batch, heads = right.shape[:2]
        return {
            name: (run(*tensors)[:batch, :heads].double() - right).abs().max().item()
            for name, run in runs.items()
            if name != UNIT
        }


def passes(
    scene: Scene, case: Case, runs: dict[str, Run], tensors: list[Tensor]
) -> dict[str, Timed]:
    """What is timed, by the name of the pass and then of the contender."""
    timed: dict[str, Timed] = {
        "forward": {name: partial(forward, run, tensors) for name, run in runs.items()}
    }
    if scene.backward:
        leaves, grad = [*tensors, *case.tables], torch.ones_like(tensors[0])
        timed["forward+backward"] = {
            name: partial(forward_and_backward, run, tensors, leaves, grad)
            for name, run in runs.items()
            if scene.device != "cpu" or name not in FORWARD_ONLY
        }
    return timed


def compare(scene: Scene, name: str) -> list[dict]:
    """Time one case in one scene, forward, and forward and backward: a row for each contender."""
    case, tensors = make_case(name, scene), inputs(scene)
    runs = contenders(scene, case)
    error = errors(case, runs, tensors)
    return [
        row
        for label, timed in passes(scene, case, runs, tensors).items()
        for row in rows(scene, name, label, timed, error)
    ]


def rows(
    scene: Scene,
    name: str,
    label: str,
    timed: Timed,
    error: Mapping[str, float],
    *,
    clock: Clock = wall,
) -> list[dict]:
    """Time one pass of a case: a row for each contender."""
    rounds = interleaved(timed, leading=LEADING, seconds=scene.seconds, clock=clock)
    found = []
    for key in timed:
        if key == UNIT:
            continue
        own = [taken[key] for taken in rounds if key in taken]
        row: dict[str, Any] = {
            "scene": scene.name,
            "case": name,
            "contender": key,
            "pass": label,
            "rounds": len(own),
            "ratios": {
                other: spread(ratios(rounds, key, other))
                for other in AGAINST
                if other in timed and other != key
            },
            "seconds": spread(own),
            "unit_seconds": spread([taken[UNIT] for taken in rounds]),
            "error": error[key],
        }
        found.append(row)
        report(row)
    return found


def report(row: dict) -> None:
    print(
        f"{row['scene']:26} {row['case']:26} {row['contender']:22} {row['pass']:17}"
        f"{row['ratios'][UNIT]['median']:6.2f} x plain {1e3 * row['seconds']['median']:9.2f} ms"
        f"  error {row['error']:.1e}  {row['rounds']} rounds",
        flush=True,
    )
