"""Training steps of the chorale models beside a busy neighbour, by how OpenMP's threads wait.

Each environment is a process of its own, since OpenMP reads it when it is loaded. Every
round times each of them alone and beside a process that keeps one core busy, one after the other;
a ratio is taken within its round. The machine must be quiet otherwise.

    python -m benchmarks.busy
    python -m benchmarks.busy --rounds 1 --seconds 0.1 --out some.json
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

from .files import RESULTS, ROOT, save

# What OpenMP is told, by name. The first is what the others are compared with.
ENVIRONMENTS: dict[str, dict[str, str]] = {
    "as it comes": {},
    "passive": {"OMP_WAIT_POLICY": "PASSIVE"},
    "1,000 spins": {"GOMP_SPINCOUNT": "1000"},
    "10,000 spins": {"GOMP_SPINCOUNT": "10000"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
_READ_BY_OPENMP = ("OMP_", "GOMP_", "KMP_", "MKL_")
PRESETS = ("tiny", "default")
ALONE, NEIGHBOUR = "alone", "beside a busy process"


class Worker:
    """A process that makes training steps of every preset when it is asked to.

    Args:
        environment: what OpenMP is told.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(_READ_BY_OPENMP)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.busy", "--worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=kept | environment,
        )
        self.threads = int(self._line())

    def milliseconds(self, preset: str, seconds: float) -> float:
        """The mean step of a preset within so many seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{preset} {seconds}\n")
        self._process.stdin.flush()
        return float(self._line())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("busy: a worker ended before its answer; its error is above")
        return line


def work() -> None:
    """What a worker does: read a preset and seconds, answer with the mean step."""
    import torch

    from relpos import attention
    from relpos_tasks.music.settings import preset
    from relpos_tasks.music.tokens import Vocabulary
    from relpos_tasks.music.train import build

    from .training import Training

    vocabulary = Vocabulary(lowest=30, highest=87)

    @lru_cache
    def job(name: str) -> tuple[Training, torch.Tensor]:
        settings = preset(name)
        model = build("huang", settings, vocabulary)
        tokens = torch.randint(vocabulary.size, (settings.training.batch, settings.window + 1))
        training = Training(settings, model, attention)
        training.step(tokens)
        return training, tokens

    print(torch.get_num_threads(), flush=True)
    for line in sys.stdin:
        name, seconds = line.split()
        training, tokens = job(name)
        steps, end = [], time.perf_counter() + float(seconds)
        while time.perf_counter() < end:
            begun = time.perf_counter()
            training.step(tokens)
            steps.append(time.perf_counter() - begun)
        print(1e3 * statistics.mean(steps), flush=True)


def measure(rounds: int, seconds: float) -> dict[str, Any]:
    """Milliseconds of a step by preset, neighbour and environment, one for each round."""
    workers = {name: Worker(environment) for name, environment in ENVIRONMENTS.items()}
    steps = {
        preset: {beside: {name: [] for name in ENVIRONMENTS} for beside in (ALONE, NEIGHBOUR)}
        for preset in PRESETS
    }
    for _ in range(rounds):
        for beside in (ALONE, NEIGHBOUR):
            neighbour = None
            if beside == NEIGHBOUR:
                neighbour = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            try:
                for preset in PRESETS:
                    for name, worker in workers.items():
                        steps[preset][beside][name].append(worker.milliseconds(preset, seconds))
            finally:
                if neighbour is not None:
                    neighbour.kill()
                    neighbour.wait()
    threads = {name: worker.threads for name, worker in workers.items()}
    for worker in workers.values():
        worker.close()
    return {"threads": threads, "milliseconds": steps}


def ratios(steps: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, float]]:
    """Median over rounds of each time over that in the first environment alone."""
    first = steps[ALONE][next(iter(ENVIRONMENTS))]
    return {
        beside: {
            name: statistics.median(a / b for a, b in zip(times, first, strict=True))
            for name, times in by_environment.items()
        }
        for beside, by_environment in steps.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each timing")
    parser.add_argument("--out", type=Path, default=RESULTS / "busy.json")
    options = parser.parse_args()
    if options.worker:
        work()
        return
    from .measure.machine import machine

    result: dict[str, Any] = {"machine": machine()} | measure(options.rounds, options.seconds)
    result["ratios"] = {preset: ratios(steps) for preset, steps in result["milliseconds"].items()}
    for preset, by_neighbour in result["ratios"].items():
        for beside, by_environment in by_neighbour.items():
            print(f"{preset}, {beside}, times a step as it comes and alone:")
            for name, ratio in by_environment.items():
                took = statistics.median(result["milliseconds"][preset][beside][name])
                print(f"  {name:<14} {ratio:6.2f}  {took:8.2f} ms")
    save(options.out, result)
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
