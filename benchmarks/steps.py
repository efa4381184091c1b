"""What a training step costs with each position scheme, in time and in memory.

Every round trains each scheme's copy of a task's model for some steps on the same batches, one
after the other; a ratio to the model without positions is taken within its round. Memory is that of
a fresh process for each scheme.

    python -m benchmarks.steps
    python -m benchmarks.steps --only vision --preset tiny --seconds 0 --out some.json
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from .files import RESULTS, save
from .measure.machine import machine
from .measure.timing import interleaved, percentiles, ratios
from .measure.training_memory import growth_of_training
from .measure.training_steps import TrainingSteps
from .options import check_out, check_part
from .workloads.training_jobs import NONE, PRESETS, TRAINING_JOBS


def time_schemes(task: str, preset: str, *, steps: int, seconds: float) -> list[dict[str, Any]]:
    """How long a step takes, a row for each scheme.

    Args:
        task: a name in `TRAINING_JOBS`.
        preset: of its sizes.
        steps: of one timing.
        seconds: after how many a scheme has been timed enough.
    """
    job = TRAINING_JOBS[task](preset)
    batches = job.batches(steps)
    runs = {scheme: partial(TrainingSteps(job.task(scheme)).run, batches) for scheme in job.schemes}
    rounds = interleaved(runs, leading=(NONE,), seconds=seconds)
    rows = []
    for scheme in runs:
        of_step = percentiles([one[scheme] / steps for one in rounds if scheme in one])
        rows.append(
            {
                "task": task,
                "scheme": scheme,
                "rounds": sum(scheme in one for one in rounds),
                "seconds": of_step,
                "ratio": percentiles(ratios(rounds, scheme, NONE)),
            }
        )
        print(
            f"{task:12} {scheme:18} {1e3 * of_step['median']:8.1f} ms a step, "
            f"{rows[-1]['ratio']['median']:.2f} x {NONE}, {rows[-1]['rounds']} rounds",
            flush=True,
        )
    return rows


def measure(task: str, preset: str, *, steps: int, seconds: float) -> list[dict[str, Any]]:
    """Time and memory, a row for each scheme.

    Args:
        task: a name in `TRAINING_JOBS`.
        preset: of its sizes.
        steps: of one timing.
        seconds: after how many a scheme has been timed enough.
    """
    rows = time_schemes(task, preset, steps=steps, seconds=seconds)
    growth = growth_of_training(task, preset, [row["scheme"] for row in rows])
    for row in rows:
        row["growth_mib"] = mib = growth[row["scheme"]]
        said = "not known" if mib is None else f"{mib:8.1f} MiB"
        print(f"{task:12} {row['scheme']:18} {said}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="TASK", help=", ".join(TRAINING_JOBS))
    parser.add_argument("--preset", choices=PRESETS, default=PRESETS[0], help="sizes (default)")
    parser.add_argument("--steps", type=int, default=2, help="of a timing (2)")
    parser.add_argument("--seconds", type=float, default=8.0, help="for each scheme (8)")
    parser.add_argument("--out", type=Path, help="results/steps.json where nothing is left out")
    options = parser.parse_args()
    check_part(parser, options.only, TRAINING_JOBS, options.out)
    if options.preset != PRESETS[0] and options.out is None:
        parser.error("--out: must be given with --preset, whose sizes are not those of the page")
    if options.steps < 1:
        parser.error(f"--steps: must be at least 1, got {options.steps}")
    out = options.out or RESULTS / "steps.json"
    check_out(parser, out)
    tasks = list(dict.fromkeys(options.only or TRAINING_JOBS))
    rows = [
        row
        for task in tasks
        for row in measure(task, options.preset, steps=options.steps, seconds=options.seconds)
    ]
    batches = {task: TRAINING_JOBS[task](options.preset).batch for task in tasks}
    save(out, {"machine": machine(), "batches": batches, "steps": rows})
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
