"""Time and memory of the op against its rivals, as ratios to plain SDPA in one interleaved run.

Every round runs the unit and then each contender; a ratio is taken within its round, and the
medians of the ratios are reported with their 20th and 80th percentiles. Beside each timing stands
the largest difference from float64. Memory is the peak of a fresh process, and its growth. What
is measured is in `scenes.py`; `tables.py` writes the pages.

    python benchmarks/attention.py
    python benchmarks/attention.py --only "L=1024" --skip-tests --out some.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from cases import NATIVE, UNIT, Case, Run, contenders, exact, inputs, make_case
from machine import machine
from memory import all_memory
from rivals import FORWARD_ONLY
from scenes import MEMORY, TIME, Scene
from timing import interleaved, ratios, spread

HERE = Path(__file__).parent
# The contenders to which ratios are kept.
AGAINST = (UNIT, NATIVE, "relpos reference")


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
) -> dict[str, dict[str, Callable[[], None]]]:
    """What is timed, by the name of the pass and then of the contender."""
    timed = {"forward": {name: partial(forward, run, tensors) for name, run in runs.items()}}
    if scene.backward:
        leaves, grad = [*tensors, *case.tables], torch.ones_like(tensors[0])
        timed["forward+backward"] = {
            name: partial(forward_and_backward, run, tensors, leaves, grad)
            for name, run in runs.items()
            if name not in FORWARD_ONLY
        }
    return timed


def compare(scene: Scene, name: str) -> list[dict]:
    """Time one case in one scene, forward, and forward and backward: a row for each contender."""
    case, tensors = make_case(name, scene), inputs(scene)
    runs = contenders(scene, case)
    error = errors(case, runs, tensors)
    rows = []
    for label, timed in passes(scene, case, runs, tensors).items():
        rounds = interleaved(timed, leading=(UNIT, NATIVE), seconds=scene.seconds)
        for key in timed:
            if key == UNIT:
                continue
            own = [taken[key] for taken in rounds if key in taken]
            rows.append(
                {
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
            )
            report(rows[-1])
    return rows


def report(row: dict) -> None:
    print(
        f"{row['scene']:26} {row['case']:26} {row['contender']:22} {row['pass']:17}"
        f"{row['ratios'][UNIT]['median']:6.2f} x plain {1e3 * row['seconds']['median']:9.2f} ms"
        f"  error {row['error']:.1e}  {row['rounds']} rounds",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE / "results" / "cpu.json")
    parser.add_argument("--only", nargs="+", help="names of scenes (all)")
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

    wanted = [one for one in (*TIME, *MEMORY) if not options.only or one.name in options.only]
    result = {
        "machine": machine(),
        "scenes": {one.name: asdict(one) for one in wanted},
        "time": [
            row for one in wanted if one in TIME for name in one.cases for row in compare(one, name)
        ],
        "memory": [row for one in wanted if one in MEMORY for row in all_memory(one)],
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
